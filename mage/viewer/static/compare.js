// Several runs together: curves, differing options, paired differences, tasks that changed most.
"use strict";
(function () {
  const {html, useState, useEffect} = htmPreact;

  function useRuns(ids) {
    const [state, setState] = useState({});
    useEffect(() => {
      let active = true;
      Promise.all(ids.map((id) => mage.load(`run/${id}`).then((run) => ({...run, id}))))
        .then((runs) => active && setState({runs}))
        .catch((error) => active && setState({error}));
      return () => {
        active = false;
      };
    }, [ids.join()]);
    return state;
  }

  function Options({runs}) {
    const flat = runs.map((run) =>
      Object.fromEntries(
        Object.entries(run.recipe).flatMap(([section, table]) =>
          Object.entries(table).map(([name, value]) => [
            `${section}.${name}`,
            JSON.stringify(value),
          ]),
        ),
      ),
    );
    const keys = [...new Set(flat.flatMap(Object.keys))]
      .sort()
      .filter((key) => new Set(flat.map((one) => one[key])).size > 1);
    if (!keys.length) return html`<p class="quiet">All options are equal.</p>`;
    return html`<div class="scroll"><table id="options"><thead><tr><th
      class="left">option</th>${runs.map((run) => html`<th class="left">${mage.clean(run.title)}
      </th>`)}</tr></thead>
      <tbody>${keys.map((key) => html`<tr><td class="left">${key}</td>${flat.map((one) => html`<td
        class="left"><code>${mage.clean(one[key] === undefined ? "–" : one[key]).slice(0, 200)}
        </code></td>`)}</tr>`)}</tbody></table></div>`;
  }

  function Changed({panel, first, second, names}) {
    const [open, setOpen] = useState(null);
    const stored = (run, name) => run.stored.includes(name);
    const side = (run, name, number) =>
      stored(run, name) && number < 60
        ? html`<a href=${mage.link("run", run.id, "meta", name, number)}>read</a>`
        : html`<span class="quiet">not stored</span>`;
    if (!panel.changed.length)
      return html`<p class="quiet">No task changed in the last episode.</p>`;
    return html`<h3>Tasks that changed most in the last episode</h3><div class="scroll"><table>
      <thead><tr><th class="left">task</th><th class="left">opponent</th><th>seat</th>
      <th>${names[0]}</th><th></th><th>${names[1]}</th><th></th><th>change</th><th></th></tr>
        </thead><tbody>
      ${panel.changed.map(
        (
          one,
        ) => html`<tr><td class="left">${one.number}</td><td
          class="left">${mage.clean(one.opponent) || "–"}</td><td>${one.opponent ? mage.seat(one.seat) : "–"}</td>
        <td>${one.first.map((value) => mage.score(value, 1)).join(" ")}</td>
          <td>${side(first, panel.first, one.number)}</td>
        <td>${one.second.map((value) => mage.score(value, 1)).join(" ")}</td>
          <td>${side(second, panel.second, one.number)}</td>
        <td class=${one.difference > 0 ? "up" : "down"}>${mage.score(one.difference, 1)}</td>
        <td>${stored(first, panel.first) && stored(second, panel.second) && one.number < 60 && html`<button class="small" onClick=${() => setOpen(open === one.number ? null : one.number)}>side by side</button>`}</td></tr>`,
      )}</tbody></table></div>
      ${
        open !== null &&
        html`<div class="sides"><div><p class="side">${names[0]}</p><${mage.MetaBody} id=${first.id}
          name=${panel.first} number=${open} /></div>
        <div><p class="side">${names[1]}</p><${mage.MetaBody} id=${second.id} name=${panel.second}
          number=${open} /></div></div>`
      }`;
  }

  function Pair({first, second}) {
    const {value, error} = mage.useData(`compare/${first.id}/${second.id}`);
    if (!value) return html`<${mage.Loading} error=${error} />`;
    const same = first.id === second.id;
    const names = same
      ? ["before training", "after training"]
      : [mage.clean(first.title), mage.clean(second.title)];
    if (!value.panels.length)
      return html`<p class="quiet">There is no paired difference: the runs have no final panel in
        common, or their task rows are not stored (kept results have none).</p>`;
    return value.panels.map(
      (panel) => html`<h3>${mage.setName(panel.second)}</h3>
      ${
        panel.same_panel
          ? html`<${mage.PairTable} measure=${second.measure}
            pairs=${[{name: `${names[1]} − ${names[0]}`, episodes: panel.episodes}]} />
            <${Changed} panel=${panel} first=${first} second=${second} names=${names} />`
          : html`<p
            class="quiet">The two panels hold different tasks, so there is no paired difference.</p>`
      }`,
    );
  }

  // The final panels of all runs, each with its own interval.
  function Finals({runs}) {
    const splits = [...new Set(runs.flatMap((run) => run.panels.map((one) => one.split)))];
    return splits.map((split) => {
      const rows = runs.flatMap((run) => {
        const panel = run.panels.find((one) => one.split === split);
        const stage = panel && panel.stages.find((one) => one.stage === "after");
        return stage ? [{run, measure: panel.measure, cell: stage.overall}] : [];
      });
      if (rows.length < 2) return null;
      const measure = rows.every((row) => row.measure === "score") ? "score" : "success";
      const percent = measure === "success";
      const count = Math.max(...rows.map((row) => row.cell.episodes.length));
      const numbers = [...Array(count).keys()];
      return html`<h3>${mage.capital(mage.splitName(split))} panel, after training: ${measure}</h3>
        <div class="scroll"><table class="finals"><thead><tr><th class="left">run</th>
        <th>tasks</th>${numbers.map((k) => html`<th>episode ${k + 1}</th>`)}<th>gain</th></tr>
        </thead><tbody>${rows.map(({run, cell}) => {
          const last = cell.episodes[cell.episodes.length - 1];
          return html`<tr class="first"><td class="left"><i class="swatch"
            style=${`background:${run.colour}`}></i>${mage.clean(run.title)}</td>
          <td>${cell.tasks.toLocaleString("en")}</td>
          ${numbers.map((k) => html`<td><${mage.Estimate}
            found=${cell.episodes[k] && cell.episodes[k][measure]} percent=${percent} /></td>`)}
          <td><${mage.Estimate} found=${percent ? last.success_gain : last.score_gain}
            percent=${percent} signed=${true} /></td></tr>`;
        })}</tbody></table></div>`;
    });
  }

  mage.CompareView = ({ids}) => {
    const {runs, error} = useRuns(ids);
    const [pair, setPair] = useState([0, ids.length > 1 ? 1 : 0]);
    if (!runs) return html`<${mage.Loading} error=${error} />`;
    const same = ids.length === 2 && ids[0] === ids[1];
    const coloured = (same ? runs.slice(0, 1) : runs).map((run, k) => ({
      ...run,
      colour: mage.colour(k),
    }));
    const last = coloured[0].episodes;
    const pick = (
      k,
    ) => html`<select aria-label=${k ? "second run" : "first run"} value=${pair[k]}
      onChange=${(event) => setPair(pair.map((old, j) => (j === k ? Number(event.target.value) : old)))}>
      ${runs.map((run, j) => html`<option value=${j}>${mage.clean(run.title)}</option>`)}</select>`;
    return html`<div class="bar"><h1>Compare</h1></div>
      <p class="legend big">${coloured.map((run) => html`<span><i
        style=${`background:${run.colour}`}></i><a
        href=${mage.link("run", run.id)}>${mage.clean(run.title)}</a></span>`)}</p>
      ${
        !same &&
        html`<${mage.Plot}
          title=${`${coloured[0].percent ? "Success" : "Score"} of the last episode, over training`} percent=${coloured[0].percent} height=${320} sync="compare"
          yLabel=${coloured[0].measure}
        lines=${coloured.flatMap((run) => [
          ...mage.metricLines([run, run], `${run.measure}_${run.episodes}`).slice(0, 1),
          ...[
            {
              label: run.title,
              colour: run.colour,
              points: true,
              xs: run.select.map((cell) => cell.update),
              ...Object.fromEntries(
                ["ys", "low", "high"].map((key, j) => [
                  key,
                  run.select.map((cell) => {
                    const found = cell.episodes[cell.episodes.length - 1][run.measure];
                    return found && found[["value", "low", "high"][j]];
                  }),
                ]),
              ),
            },
          ].filter((line) => line.xs.length),
        ])}
        bounds=${mage.boundsOf(coloured[0])} />
      <${mage.SmallPlots} runs=${coloured} sync="compare" /><h2>Final figures</h2><${Finals}
        runs=${coloured} /><h2>Options that differ</h2><${Options} runs=${runs} />`
      }
      <h2>Paired difference ${!same && runs.length > 1 && html`<small>${pick(1)} − ${pick(0)}
        </small>`}</h2>
      <${Pair} key=${pair.join()} first=${runs[pair[0]]} second=${runs[pair[1]]} />`;
  };
})();
