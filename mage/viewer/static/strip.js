// The adaptation strip: one coloured cell an episode for every task of a panel.
"use strict";
(function () {
  const {html, useState, useRef, useLayoutEffect, useEffect} = htmPreact;
  const [NARROW, WIDE] = [9, 22]; // pixels of a cell; few tasks have wide cells
  const HEIGHT = 13;
  const GAP = 7; // pixels between lines of tasks
  const COLOURS = {w: "--won", d: "--drawn", l: "--lost"};

  function usePanel(id, name, hasTasks) {
    const [state, setState] = useState(null);
    useEffect(() => {
      let active = true;
      setState(null);
      if (!name) return undefined;
      const path = `run/${id}/${hasTasks ? "tasks" : "index"}/${name}`;
      mage
        .load(path)
        .then((value) => {
          if (!active) return;
          const tasks = hasTasks
            ? value.tasks.map(([opponent, seat, scores, outcomes, play], number) => ({
                number,
                play,
                opponent,
                seat,
                scores,
                outcomes: outcomes.join(""),
              }))
            : value.rows.map((row) => ({
                number: row[0],
                play: 0,
                opponent: row[3],
                seat: row[4],
                scores: row[6],
                outcomes: row[7],
              }));
          setState({tasks});
        })
        .catch((error) => active && setState({error}));
      return () => {
        active = false;
      };
    }, [id, name]);
    return state;
  }

  function Block({id, name, tasks, episodes, sorted, stored, whole}) {
    const place = useRef(null);
    const [grid, setGrid] = useState({across: 1, cell: NARROW});
    const [tip, setTip] = useState(null);
    const order = sorted
      ? [...tasks].sort((a, b) =>
          a.outcomes < b.outcomes ? 1 : a.outcomes > b.outcomes ? -1 : a.number - b.number,
        )
      : tasks;
    const step = episodes * HEIGHT + GAP;
    useLayoutEffect(() => {
      const canvas = place.current;
      const draw = () => {
        const width = canvas.parentElement.clientWidth;
        const cell = Math.min(WIDE, Math.max(NARROW, Math.floor(width / order.length)));
        const across = Math.max(1, Math.floor(width / cell));
        const lines = Math.ceil(order.length / across);
        const ratio = devicePixelRatio || 1;
        canvas.width = across * cell * ratio;
        canvas.height = lines * step * ratio;
        canvas.style.width = `${across * cell}px`;
        canvas.style.height = `${lines * step}px`;
        const ctx = canvas.getContext("2d");
        ctx.scale(ratio, ratio);
        const style = getComputedStyle(document.documentElement);
        order.forEach((task, k) =>
          [...task.outcomes].forEach((one, episode) => {
            ctx.fillStyle = style.getPropertyValue(COLOURS[one]);
            ctx.fillRect(
              (k % across) * cell,
              Math.floor(k / across) * step + episode * HEIGHT,
              cell - 1.5,
              HEIGHT - 1.5,
            );
          }),
        );
        setGrid({across, cell});
      };
      draw();
      const watch = new ResizeObserver(draw);
      watch.observe(canvas.parentElement);
      return () => watch.disconnect();
    }, [order.length, sorted, name, mage.theme]);
    const find = (event) => {
      const box = place.current.getBoundingClientRect();
      const k =
        Math.floor((event.clientY - box.top) / step) * grid.across +
        Math.floor((event.clientX - box.left) / grid.cell);
      return order[k];
    };
    const move = (event) => {
      const task = find(event);
      setTip(
        task
          ? {
              task,
              left: Math.min(event.offsetX, place.current.clientWidth - 200),
              top: event.offsetY,
            }
          : null,
      );
    };
    const open = (event) => {
      const task = find(event);
      if (task && task.number < stored)
        location.hash = mage.link("run", id, "meta", name, task.number);
    };
    return html`<div class="strip" onMouseLeave=${() => setTip(null)}>
      <canvas ref=${place} onMouseMove=${move} onClick=${open} role="img"
        aria-label=${`Outcomes of ${count(tasks)}, by episode`}></canvas>
      ${
        tip &&
        html`<div class="tip"
          style=${`left:${Math.max(0, tip.left)}px;top:${tip.top + 18}px`}>task ${tip.task.number % whole}${tip.task.play ? `, play ${tip.task.play + 1}` : ""}${tip.task.opponent && `, ${mage.seat(tip.task.seat)} seat`}
        <br />scores ${tip.task.scores.map((one) => mage.score(one, 1)).join(", ")}${tip.task.number < stored ? html`<br /><b>click to read it</b>` : ""}</div>`
      }</div>`;
  }

  // A task may have been played several times (evaluate.plays); each play is a column.
  const count = (tasks) => {
    const plays = Math.max(...tasks.map((task) => task.play)) + 1;
    const different = tasks.filter((task) => task.play === 0).length;
    return `${different.toLocaleString("en")} tasks${plays > 1 ? `, ${plays} plays each` : ""}`;
  };

  const share = (tasks, k, outcome) => {
    const played = tasks.filter((task) => k < task.outcomes.length);
    return played.length
      ? played.filter((task) => task.outcomes[k] === outcome).length / played.length
      : null;
  };

  mage.StripView = ({id, run, query}) => {
    const panels = run.panels.flatMap((panel) =>
      panel.stages.filter((one) => one.has_tasks).map((one) => `${one.stage}_${panel.split}`),
    );
    const names = [
      ...new Set([
        ...panels.sort((a, b) => b.startsWith("after") - a.startsWith("after")),
        ...run.stored,
      ]),
    ];
    const [name, setName] = useState(query.set || names[0] || "");
    const [sorted, setSorted] = useState(true);
    const found = usePanel(id, name, panels.includes(name));
    if (!names.length) return html`<p class="quiet empty">The outcomes of single tasks are not stored here.</p>`;
    if (!found || found.error) return html`<${mage.Loading} error=${found && found.error} />`;
    const episodes = Math.max(...found.tasks.map((task) => task.outcomes.length));
    const stored = run.stored.includes(name) ? (panels.includes(name) ? 60 : Infinity) : 0;
    const whole = panels.includes(name) ? found.tasks.filter((task) => task.play === 0).length : Infinity;
    const opponents = [...new Set(found.tasks.map((task) => task.opponent))].sort();
    return html`<div class="filters"><label>Panel <select name="panel" value=${name}
      onChange=${(event) => setName(event.target.value)}>
        ${names.map((one) => html`<option value=${one}>${mage.setName(one)}</option>`)}</select>
          </label>
        <label><input type="checkbox" checked=${sorted}
          onChange=${() => setSorted(!sorted)} /> sort tasks by outcome</label>
        <span class="legend"><span><i class="won"></i>won</span><span><i class="drawn">
          </i>drawn</span><span><i class="lost"></i>lost</span></span></div>
      <p class="quiet">Each column is ${found.tasks.some((task) => task.play) ? "one play of a task" : "a task"}; its cells are the episodes from top to bottom. Learning during play shows as columns that turn from lost to won.</p>
      ${opponents.map((opponent) => {
        const tasks = found.tasks.filter((task) => task.opponent === opponent);
        return html`<section key=${opponent}><h2>${mage.clean(opponent) || "all tasks"} <small
          class="quiet">${count(tasks)}; won
          ${[...Array(episodes).keys()].map((k) => ` ${mage.percent(share(tasks, k, "w"), 0)}`).join(" →")}</small></h2>
          <${Block} id=${id} name=${name} tasks=${tasks} episodes=${episodes} sorted=${sorted}
            stored=${stored} whole=${whole} /></section>`;
      })}`;
  };
})();
