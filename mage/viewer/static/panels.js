// The final panels of a run: figures, score by episode, tables by opponent, seat and kind of task.
"use strict";
(function () {
  const {html} = htmPreact;
  const MEASURES = [
    ["score", "score", false],
    ["success", "success", true],
    ["pass_at", "Pass@k", true],
    ["draws", "draws", true],
    ["regret", "regret of a turn", false],
  ];
  const ofEpisode = (stage, name, key) =>
    stage.overall.episodes.map((one) => (one[name] ? one[name][key] : null));

  mage.Tiles = ({panel}) => {
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
  };

  mage.tight = (episodes) => (episodes > 6 ? "tight" : "");

  // Score or success by episode, with intervals: how the agent changes during play.
  mage.EpisodeCurve = ({panel}) => {
    const name = panel.measure;
    const percent = name !== "score";
    const stages = [...panel.stages].sort((a, b) => (a.stage === "after") - (b.stage === "after"));
    const first = stages[0].overall;
    const numbers = first.episodes.map((one) => one.episode);
    const lines = stages.map((one) => ({
      label: one.title,
      colour: mage.stageColour(one.stage),
      xs: one.overall.episodes.map((episode) => episode.episode),
      ys: ofEpisode(one, name, "value"),
      low: ofEpisode(one, name, "low"),
      high: ofEpisode(one, name, "high"),
    }));
    const exact = !percent && first.episodes.some((one) => one.ceiling !== null);
    const best = {
      label: "best learner (exact)",
      colour: mage.ink(),
      dash: [2, 4],
      xs: numbers,
      ys: first.episodes.map((one) => one.ceiling),
    };
    const bounds =
      !percent && first.non_adapting !== null
        ? [{label: "best without adapting", y: first.non_adapting}]
        : [];
    return html`<${mage.Plot} title=${`${percent ? "Success" : "Score"} by episode, ${mage.splitName(panel.split)} panel`}
      note=${`${first.tasks.toLocaleString("en")} tasks, 95 % intervals.`} xLabel="episode" yLabel=${name}
      percent=${percent} height=${300} lines=${exact ? [...lines, best] : lines} bounds=${bounds} right=${true} />`;
  };

  // Rows are stages, columns are episodes, so ten episodes fit.
  mage.PanelTable = ({panel}) => {
    const {stages} = panel;
    const count = Math.max(...stages.map((one) => one.overall.episodes.length));
    const numbers = [...Array(count).keys()];
    const used = MEASURES.filter(([name]) =>
      stages.some((one) =>
        one.overall.episodes.some(
          (episode) => episode[name] && (name !== "draws" || episode[name].value > 0),
        ),
      ),
    );
    const exact = (title, valueOf) => html`<tr><td class="left"></td><td class="left">${title}</td>
      ${numbers.map((k) => html`<td>${mage.score(valueOf(stages[0].overall, k))}</td>`)}</tr>`;
    const {non_adapting: plain, episodes} = stages[0].overall;
    return html`<div class="scroll"><table class=${`panel ${mage.tight(count)}`}><thead><tr><th class="left">figure</th>
      <th class="left">agent</th>${numbers.map((k) => html`<th>episode ${k + 1}</th>`)}</tr></thead>
      <tbody>${used.map(
        ([name, title, percent]) => html`${stages.map(
          (one, place) => html`<tr class=${place ? "" : "first"}>
            <td class="left">${place ? "" : title}</td><td class="left">${one.title}</td>
            ${numbers.map((k) => {
              const found = one.overall.episodes[k];
              return html`<td><${mage.Estimate} found=${found && found[name]}
                percent=${percent} /></td>`;
            })}</tr>`,
        )}
        ${name === "score" && plain !== null && exact("best without adapting", () => plain)}
        ${
          name === "score" &&
          episodes.some((one) => one.ceiling !== null) &&
          exact("best learner", (cell, k) => cell.episodes[k] && cell.episodes[k].ceiling)
        }`,
      )}</tbody></table></div>`;
  };

  mage.CellTable = ({title, panel, name}) => {
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
  };

  // Success by kind of task, where the environment has kinds.
  mage.KindTable = ({id, panel}) => {
    const shown = panel.stages.find((one) => one.stage === "after") || panel.stages[0];
    const path = shown.has_tasks ? `run/${id}/kinds/${shown.stage}_${panel.split}` : null;
    const {value} = mage.useData(path);
    if (!value || !value.kinds.length) return null;
    const percent = panel.measure !== "score";
    const tasks = (one) => one.episodes[0].tasks;
    return html`<h3>By kind of task, ${shown.title}</h3><div class="scroll"><table class=${`kinds ${mage.tight(value.kinds[0].episodes.length)}`}>
      <thead><tr><th class="left">kind</th><th>tasks of episode 1</th>
      ${value.kinds[0].episodes.map((one) => html`<th>episode ${one.episode}</th>`)}</tr></thead>
      <tbody>${value.kinds.map(
        (one) => html`<tr class="first"><td class="left">${mage.clean(one.kind)}</td>
        <td>${tasks(one).toLocaleString("en")}</td>
        ${one.episodes.map((episode) => html`<td><${mage.Estimate}
          found=${episode[percent ? "success" : "score"]} percent=${percent} /></td>`)}</tr>`,
      )}</tbody></table></div>`;
  };

  // Paired differences: a row for each pair {name, episodes}, a column for each episode.
  mage.PairTable = ({pairs, measure}) => {
    const percent = measure !== "score";
    const name = percent ? "success" : "score";
    if (!pairs.length) return null;
    return html`<div class="scroll"><table class=${`pairs ${mage.tight(pairs[0].episodes.length)}`}><thead><tr>
      <th class="left">paired difference, ${name}</th>
      ${pairs[0].episodes.map((one) => html`<th>episode ${one.episode}</th>`)}<th>tasks</th></tr>
      </thead><tbody>${pairs.map(
        (pair) => html`<tr class="first"><td class="left">${pair.name}</td>
        ${pair.episodes.map((one) => {
          const {difference, p_value: p} = one[name];
          return html`<td><${mage.Estimate} found=${difference} percent=${percent}
            signed=${true} /><small class="quiet">${p < 0.001 ? "p < .001" : `p = ${mage.p(p)}`}
            </small></td>`;
        })}<td>${pair.episodes[0][name].difference.count.toLocaleString("en")}</td></tr>`,
      )}</tbody></table></div>`;
  };
})();
