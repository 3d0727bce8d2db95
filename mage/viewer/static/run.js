// One run: warnings, figures, curves, panels, recipe.
"use strict";
(function () {
  const {html} = htmPreact;
  const TABS = [
    ["", "Overview"],
    ["episodes", "Meta-episodes"],
    ["strip", "Adaptation"],
    ["recipe", "Recipe"],
  ];

  mage.RunHead = ({id, run, tab}) => html`
    <div class="bar"><h1>${mage.clean(run.title)}</h1><${mage.State} state=${run.state} /></div>
    <p class="quiet">${run.environment} · ${run.updates.toLocaleString("en")} of ${run.total.toLocaleString("en")} updates
      · ${run.played.toLocaleString("en")} episodes of training · seed ${run.seed}
      ${run.seconds > 0 && html` · ${mage.duration(run.seconds)} of updates`}
      ${run.chosen_update !== null && html` · chosen checkpoint: update ${run.chosen_update}`}</p>
    <nav class="tabs" aria-label="Views of this run">${TABS.map(
      ([name, title]) => html`<a
      class=${tab === name ? "on" : ""} aria-current=${tab === name ? "page" : undefined}
      href=${name ? mage.link("run", id, name) : mage.link("run", id)}>${title}</a>`,
    )}</nav>`;

  // At most four episodes; the last one of training is among them if panels are longer.
  mage.shownEpisodes = ({episodes, recipe}) => {
    if (episodes <= 4) return [...Array(episodes).keys()];
    const trained = recipe.play.episodes;
    const last = episodes - 1;
    const between =
      trained < episodes && trained > 1 ? [1, trained - 1] : [last / 3, (2 * last) / 3];
    return [...new Set([0, ...between.map(Math.round), last])];
  };

  // Score lines by episode: smoothed training and the select panel with intervals.
  function scoreLines(run) {
    const shown = mage.shownEpisodes(run);
    return shown.flatMap((k, place) => {
      const shade = mage.episodeColour(place);
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
      lines=${lines} legend=${false}
      borders=${runs.length === 1 ? runs[0].borders : []} />`
      );
    })}</div>`;

  const Warnings = ({warnings}) =>
    warnings.length > 0 &&
    html`<ul class="warnings" role="alert">${warnings.map(
      (one) => html`<li>⚠ ${mage.clean(mage.capital(one))}</li>`,
    )}</ul>`;

  // The tables of one panel, or of one world of a mix.
  const Figures = ({panel}) => html`<${mage.PanelTable} panel=${panel} />
    <${mage.PairTable} measure=${panel.measure} pairs=${panel.pairs.map((pair) => ({
      name: `after training − ${pair.against === "before" ? "before training" : "without memory"}`,
      episodes: pair.episodes,
    }))} />
    <${mage.CellTable} title="By opponent" panel=${panel} name="by_opponent" />
    <${mage.CellTable} title="By seat" panel=${panel} name="by_seat" />`;

  function Overview({id, run}) {
    const several = run.panels.length > 1;
    return html`<${Warnings} warnings=${run.warnings} />
      ${run.panels.map(
        (
          panel,
        ) => html`${several && html`<h2>${mage.capital(mage.splitName(panel.split))} panel</h2>`}<${mage.Tiles}
          panel=${panel} />
        <ul class="verdict">${panel.verdict.map((one) => html`<li>${one}</li>`)}</ul>`,
      )}
      <div class=${several ? "pair" : ""}>${run.panels.map(
        (panel) =>
          panel.stages[0].overall.episodes.length > 1 &&
          html`<${mage.EpisodeCurve} key=${panel.split} panel=${panel} />`,
      )}</div>
      ${
        run.updates > 0 &&
        html`<${mage.Plot} title=${`${run.percent ? "Success" : "Score"} by episode, over training`}
        percent=${run.percent} height=${340} sync="run" yLabel=${run.measure}
        note="Lines: training, smoothed. Points: select panel with 95 % intervals. Drag to zoom, double-click to reset."
        lines=${scoreLines(run)} bounds=${mage.boundsOf(run)} borders=${run.borders} />`
      }
      <${mage.SmallPlots} runs=${[run]} sync="run" />
      ${run.panels.map(
        (panel) => html`<h2>Figures of the ${mage.splitName(panel.split)} panel</h2><${Figures}
          panel=${panel} />
        <${mage.KindTable} id=${id} panel=${panel} />
        ${(panel.worlds || []).map(
          (one) => html`<h2>${mage.clean(one.world)}, ${mage.splitName(panel.split)} panel</h2><ul
            class="verdict">${one.verdict.map((line) => html`<li>${line}</li>`)}</ul><${Figures}
            panel=${one} />`,
        )}`,
      )}
      ${run.panels.some((panel) => panel.pairs.length) && html`<p><a
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
