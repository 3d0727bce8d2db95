// One run: warnings, figures, curves, panels, recipe.
"use strict";
(function () {
  const {html, useState} = htmPreact;
  const TABS = [
    ["", "Overview"],
    ["episodes", "Meta-episodes"],
    ["strip", "Adaptation"],
    ["recipe", "Recipe"],
  ];

  mage.RunHead = ({id, run, tab}) => html`
    <div class="bar"><h1>${mage.clean(run.title)}</h1><${mage.State} state=${run.state} /></div>
    <p class="quiet">${run.environment} · ${run.updates.toLocaleString("en")} of ${run.total.toLocaleString("en")} updates
      · ${run.played.toLocaleString("en")} episodes of training · seed ${run.seed} · ${mage.duration(run.seconds)} of updates
      ${run.chosen_update !== null && html` · chosen checkpoint: update ${run.chosen_update}`}</p>
    <nav class="tabs" aria-label="Views of this run">${TABS.map(
      ([name, title]) => html`<a
      class=${tab === name ? "on" : ""} aria-current=${tab === name ? "page" : undefined}
      href=${name ? mage.link("run", id, name) : mage.link("run", id)}>${title}</a>`,
    )}</nav>`;

  // Score lines by episode: smoothed training and the select panel with intervals.
  function scoreLines(run) {
    const count = run.episodes;
    const shown =
      count <= 4
        ? [...Array(count).keys()]
        : [0, Math.round((count - 1) / 3), Math.round((2 * (count - 1)) / 3), count - 1];
    return shown.flatMap((k, place) => {
      const shade = mage.episodeColours[place % mage.episodeColours.length];
      const base = {label: `episode ${k + 1}`, colour: shade};
      const values = run.metrics[`${run.measure}_${k + 1}`];
      const training = values
        ? [
            {...base, xs: run.metrics.update, ys: values, faint: true},
            {...base, xs: run.metrics.update, ys: mage.smooth(values)},
          ]
        : [];
      const cells = run.select.map((cell) => cell.episodes[k] && cell.episodes[k][run.measure]);
      const points = cells.some(Boolean)
        ? [
            {
              ...base,
              points: true,
              xs: run.select.map((cell) => cell.update),
              ys: cells.map((one) => one && one.value),
              low: cells.map((one) => one && one.low),
              high: cells.map((one) => one && one.high),
            },
          ]
        : [];
      return [...training, ...points];
    });
  }

  mage.boundsOf = (run) => {
    const panel = run.panels.find((one) => one.split === "test");
    const cell = run.select[0] || (panel && panel.stages[0].overall);
    if (!cell || run.measure !== "score" || cell.non_adapting === null) return [];
    const last = cell.episodes[cell.episodes.length - 1];
    return [
      {label: "best without adapting", y: cell.non_adapting},
      ...(last.ceiling === null
        ? []
        : [{label: `best learner, episode ${last.episode}`, y: last.ceiling}]),
    ];
  };

  const SMALL = [
    ["Entropy of moves (nats)", "action_entropy", {zero: true}],
    ["Illegal replies", "illegal_rate", {percent: true, zero: true}],
    ["Cut-off replies", "cut_off_rate", {percent: true, zero: true}],
    ["Reply length (tokens)", "reply_length", {zero: true}],
    ["Reflection length (tokens)", "reflection_length", {zero: true}],
    ["Groups with equal returns", "flat_groups", {percent: true, zero: true}],
    ["Engine and learner mismatch", "mismatch", {zero: true}],
    ["KL of an update", "approx_kl", {zero: true}],
    ["Clipped tokens", "clip_fraction", {percent: true, zero: true}],
    ["Gradient norm", "gradient_norm", {zero: true}],
    ["Seconds of an update", "time:total", {zero: true}],
    ["Memory of the host (GB)", "time:memory_host", {zero: true}],
    ["Memory of the GPU (GB)", "time:memory_device", {zero: true}],
  ];

  mage.SmallPlots = ({runs, sync}) =>
    html`<div class="plots">${SMALL.map(([title, name, look]) => {
      const lines = mage.metricLines(runs, name);
      const used = lines.some((line) => line.ys.some((value) => value));
      return (
        used &&
        html`<${mage.Plot} key=${name} title=${title} ...${look} height=${160} sync=${sync}
      lines=${lines} legend=${false} />`
      );
    })}</div>`;

  const Warnings = ({warnings}) =>
    warnings.length > 0 &&
    html`<ul class="warnings" role="alert">${warnings.map(
      (one) => html`<li>⚠ ${mage.clean(mage.capital(one))}</li>`,
    )}</ul>`;

  function Tiles({panel, run}) {
    const percent = panel.measure !== "score";
    const first = panel.stages[0].overall;
    const last = first.episodes[first.episodes.length - 1];
    return html`<div class="tiles">
      ${panel.stages.map((one) => {
        const end = one.overall.episodes[one.overall.episodes.length - 1];
        return html`<div class="tile">
        <${mage.Estimate} found=${end[panel.measure]} percent=${percent} />
          <span>episode ${end.episode}, ${one.title}</span></div>`;
      })}
      ${panel.measure === "score" && first.non_adapting !== null && html`<div class="tile exact">
        <span class="estimate">${mage.score(first.non_adapting)}<small>exact</small></span>
        <span>best without adapting</span></div>`}
      ${panel.measure === "score" && last.ceiling !== null && html`<div class="tile exact"><span
        class="estimate">${mage.score(last.ceiling)}<small>exact</small></span>
        <span>best learner, episode ${last.episode}</span></div>`}
    </div>`;
  }

  function PanelTable({panel}) {
    const MEASURES = [
      ["score", "score", false],
      ["success", "success", true],
      ["pass_at", "Pass@k", true],
      ["draws", "draws", true],
      ["regret", "regret of a turn", false],
    ];
    const stages = panel.stages;
    const count = stages[0].overall.episodes.length;
    const bounded = stages[0].overall.non_adapting !== null;
    const rows = MEASURES.flatMap(([name, title, percent]) => {
      const any = stages.some((one) =>
        one.overall.episodes.some(
          (episode) => episode[name] && (name !== "draws" || episode[name].value > 0),
        ),
      );
      return any ? [...Array(count).keys()].map((k) => ({name, title, percent, k})) : [];
    });
    return html`<div class="scroll"><table><thead><tr><th class="left">figure</th><th>episode</th>
      ${stages.map((one) => html`<th>${one.title}
        </th>`)}${bounded && html`<th>best without adapting</th><th>best learner</th>`}</tr></thead>
      <tbody>${rows.map(
        (
          row,
        ) => html`<tr class=${row.k ? "" : "first"}><td class="left">${row.k ? "" : row.title}</td>
          <td>${row.k + 1}</td>
        ${stages.map((one) => html`<td><${mage.Estimate}
          found=${one.overall.episodes[row.k] && one.overall.episodes[row.k][row.name]}
          percent=${row.percent} /></td>`)}
        ${
          bounded &&
          html`<td>${row.name === "score" ? mage.score(stages[0].overall.non_adapting) : "–"}</td>
          <td>${row.name === "score" ? mage.score(stages[0].overall.episodes[row.k].ceiling) : "–"}
            </td>`
        }</tr>`,
      )}</tbody></table></div>`;
  }

  function Cells({title, panel, name}) {
    const shown = panel.stages.find((one) => one.stage === "after") || panel.stages[0];
    const cells = shown[name];
    if (cells.length < 2) return null;
    const percent = panel.measure !== "score";
    return html`<h3>${title}, ${shown.title}</h3><div class="scroll"><table><thead><tr><th
      class="left">${name === "by_seat" ? "seat" : "opponent"}</th><th>tasks</th>
      ${cells[0].episodes.map((one) => html`<th>episode ${one.episode}</th>`)}<th>gain</th>
      ${!percent && html`<th>best without adapting</th><th>best response</th>`}</tr></thead><tbody>
      ${cells.map((cell) => {
        const last = cell.episodes[cell.episodes.length - 1];
        return html`<tr class="first">
        <td class="left">${name === "by_seat" ? mage.seat(cell.seat) : mage.clean(cell.opponent) || "–"}</td><td>${cell.tasks.toLocaleString("en")}</td>
        ${cell.episodes.map((one) => html`<td><${mage.Estimate} found=${one[panel.measure]}
          percent=${percent} /></td>`)}
        <td><${mage.Estimate} found=${percent ? last.success_gain : last.score_gain}
          percent=${percent} signed=${true} /></td>
        ${!percent && html`<td>${mage.score(cell.non_adapting)}</td>
          <td>${mage.score(cell.best_response)}</td>`}</tr>`;
      })}</tbody></table></div>`;
  }

  mage.PairTable = ({panel, measure, names}) => {
    const percent = measure !== "score";
    return html`<div class="scroll"><table class="pairs"><thead><tr><th
      class="left">difference</th><th>episode</th><th>${percent ? "success" : "score"}</th>
      <th>p</th><th>tasks</th></tr></thead>
      <tbody>${panel.episodes.map((one) => {
        const found = one[percent ? "success" : "score"];
        return html`<tr><td class="left">${names}</td><td>${one.episode}</td>
        <td><${mage.Estimate} found=${found.difference} percent=${percent} signed=${true} /></td>
        <td>${found.p_value < 0.001 ? "< 0.001" : found.p_value.toFixed(3)}</td>
          <td>${found.difference.count.toLocaleString("en")}</td></tr>`;
      })}</tbody></table></div>`;
  };

  function Overview({id, run}) {
    const several = run.panels.length > 1;
    return html`<${Warnings} warnings=${run.warnings} />
      ${run.panels.map(
        (
          panel,
        ) => html`${several && html`<h2>${panel.split} panel</h2>`}<${Tiles} panel=${panel}
          run=${run} />
        <ul class="verdict">${panel.verdict.map((one) => html`<li>${one}</li>`)}</ul>`,
      )}
      <${mage.Plot} title=${`${run.percent ? "Success" : "Score"} by episode, over training`}
        percent=${run.percent} height=${340} sync="run"
        note="Lines: training, smoothed. Points: select panel with 95 % intervals. Drag to zoom, double-click to reset."
        lines=${scoreLines(run)} bounds=${mage.boundsOf(run)} />
      <${mage.SmallPlots} runs=${[run]} sync="run" />
      ${run.panels.map(
        (panel) => html`<h2>Figures of the ${panel.split} panel</h2><${PanelTable} panel=${panel} />
        ${panel.pairs.map(
          (pair) => html`<${mage.PairTable} panel=${pair} measure=${panel.measure}
          names=${`after training − ${pair.against === "before" ? "before training" : "without memory"}`} />`,
        )}
        <${Cells} title="By opponent" panel=${panel} name="by_opponent" /><${Cells} title="By seat"
          panel=${panel} name="by_seat" />`,
      )}
      ${run.panels.length > 0 && html`<p><a
        href=${mage.link("compare", `${id},${id}`)}>Compare before and after training, task by task</a></p>`}`;
  }

  const Recipe = ({
    run,
  }) => html`<h2>Resolved recipe</h2><${mage.Text} text=${run.toml} kind="block" />
    <h2>Versions</h2><${mage.Text} text=${JSON.stringify(run.versions, null, 2)} kind="block" />`;

  mage.RunView = ({id, tab, query}) => {
    const {value, error} = mage.useData(`run/${id}`, (run) =>
      !run || run.state === "running" ? 4 : 0,
    );
    if (!value) return html`<${mage.Loading} error=${error} />`;
    return html`<${mage.RunHead} id=${id} run=${value} tab=${tab} />
      ${tab === "" && html`<${Overview} id=${id} run=${value} />`}
      ${tab === "episodes" && html`<${mage.EpisodesView} id=${id} run=${value} query=${query} />`}
      ${tab === "strip" && html`<${mage.StripView} id=${id} run=${value} query=${query} />`}
      ${tab === "recipe" && html`<${Recipe} run=${value} />`}`;
  };
})();
