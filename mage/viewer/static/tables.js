// Tables of `mage reproduce`: intervals as a plot first, then figures, curves and pairs.
"use strict";
(function () {
  const {html} = htmPreact;
  const NAMES = {
    react: "ReAct",
    reflexion: "Reflexion",
    amem: "A-MEM",
    memento: "Memento",
    grpo: "GRPO",
    gigpo: "GiGPO",
    lamer: "LaMer",
    mage: "MAGE (differential return)",
    final: "weighted final return",
    differential: "differential return (MAGE)",
    cumulative: "cumulative return (LaMer)",
    single: "single episodes",
    stationary: "one opponent in a group",
    mixed: "mixed opponents in a group",
    global: "global anchors",
    local: "local anchors",
  };
  const full = (label) => NAMES[label] || mage.clean(label);

  function Intervals({result}) {
    const percent = result.measure !== "score";
    const rows = result.arms.map((arm) => ({
      arm,
      first: arm.episodes[0][result.measure],
      last: arm.episodes[arm.episodes.length - 1][result.measure],
    }));
    const lines = result.bounds
      ? [
          ["best without adapting", result.bounds.non_adapting],
          ["best learner", result.bounds.learner[result.bounds.learner.length - 1]],
        ].filter((one) => one[1] !== null)
      : [];
    const values = [
      ...rows.flatMap((row) => [row.first.value, row.last.low, row.last.high]),
      ...lines.map((one) => one[1]),
    ];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const isNarrow = matchMedia("(max-width: 700px)").matches; // labels stand above their lines
    const [left, width, step, end] = isNarrow ? [6, 290, 44, 70] : [230, 560, 30, 110];
    const x = (value) => left + (width * (value - low)) / (high - low || 1);
    const height = rows.length * step + 54;
    return html`<div class="scroll"><svg class="intervals"
      viewBox=${`0 0 ${left + width + end} ${height}`} role="img"
      aria-label="Last episode with 95 % intervals">
      ${lines.map(
        (
          [name, value],
          k,
        ) => html`<line x1=${x(value)} x2=${x(value)} y1="20" y2=${height - 28}
          class=${k ? "bound dotted" : "bound"} />
        <text x=${x(value)} y=${k ? 12 : height - 12}
          class="caption middle">${name} ${mage.figure(value, percent)}</text>`,
      )}
      ${rows.map(({arm, first, last}, k) => {
        const y = (isNarrow ? 48 : 34) + k * step;
        return html`<text x=${isNarrow ? 0 : left - 14} y=${isNarrow ? y - 12 : y + 4}
            class=${isNarrow ? "label above" : "label"}>${full(arm.label)}</text>
          <line x1=${left} x2=${left + width} y1=${y} y2=${y} class="row" />
          <line x1=${x(first.value)} x2=${x(last.value)} y1=${y} y2=${y} class="change" />
          <circle cx=${x(first.value)} cy=${y} r="4" class="first">
            <title>episode 1: ${mage.figure(first.value, percent)}</title></circle>
          <line x1=${x(last.low)} x2=${x(last.high)} y1=${y} y2=${y} class="range" />
          <circle cx=${x(last.value)} cy=${y} r="5.5"
            class=${arm.trains ? "point" : "point plain"}>
            <title>last episode: ${mage.figure(last.value, percent)}</title></circle>
          <text x=${left + width + 12} y=${y + 4} class="value">${mage.figure(last.value, percent)}
            </text>`;
      })}</svg></div>
      <p class="quiet">Filled: last episode with its 95 % interval (grey: without training). Hollow: first episode.</p>`;
  }

  function Figures({result}) {
    const last = result.arms[0].episodes.length;
    const paper = result.arms.some((arm) => arm.paper !== null);
    return html`<div class="scroll"><table><thead><tr><th class="left">method</th><th>seeds</th>
      <th>tasks</th><th>score, episode ${last}</th><th>success, episode ${last}</th>
      <th>Pass@${last}</th><th>gain, 1 to ${last}</th>
      <th>training episodes</th>${paper && html`<th>the paper</th>`}</tr></thead>
      <tbody>${result.arms.map((arm) => {
        const end = arm.episodes[last - 1];
        return html`<tr class="first"><td class="left">${full(arm.label)}</td>
          <td>${arm.seeds.length}</td><td>${arm.tasks.toLocaleString("en")}</td>
        <td><${mage.Estimate} found=${end.score} /></td><td><${mage.Estimate} found=${end.success}
          percent=${true} /></td><td><${mage.Estimate} found=${end.pass_at} percent=${true} /></td>
        <td><${mage.Estimate} found=${arm.gain} percent=${result.measure !== "score"}
          signed=${true} /></td>
          <td>${Math.round(arm.budget.training_episodes).toLocaleString("en")}</td>
        ${paper && html`<td>${arm.paper === null ? "–" : mage.percent(arm.paper)}</td>`}</tr>`;
      })}</tbody></table></div>`;
  }

  function Pairs({result}) {
    const labels = result.arms.map((arm) => arm.label);
    const found = Object.fromEntries(
      result.pairs.flatMap((pair) => [
        [`${pair.first}|${pair.second}`, {...pair, sign: 1}],
        [`${pair.second}|${pair.first}`, {...pair, sign: -1}],
      ]),
    );
    const real = (pair) =>
      (pair.seeds > 1 || !pair.trained) &&
      pair.adjusted < 0.05 &&
      (pair.difference.difference.low > 0 || pair.difference.difference.high < 0);
    const percent = result.measure !== "score";
    return html`<details class="pairs">
      <summary>All pairs: row minus column in the last episode (${result.pairs.filter(real).length} of ${result.pairs.length} significant after Holm's correction)</summary>
      <div class="scroll"><table class="matrix"><thead><tr><th>
        </th>${labels.map((one) => html`<th>${full(one)}</th>`)}</tr></thead><tbody>
      ${labels.map(
        (row) =>
          html`<tr><td class="left">${full(row)}</td>${labels.map((column) => {
            const pair = found[`${column}|${row}`];
            if (!pair) return html`<td class="quiet">·</td>`;
            const value = pair.sign * pair.difference.difference.value;
            return html`<td class=${real(pair) ? (value > 0 ? "up" : "down") : "quiet"}
              title=${`Holm p ${pair.adjusted.toFixed(4)}, ${pair.seeds} seeds`}>${percent ? mage.score(100 * value, 1) : mage.score(value)}${real(pair) ? " *" : ""}</td>`;
          })}</tr>`,
      )}</tbody></table></div><p
        class="quiet">* significant. ${percent ? "Differences in percentage points." : ""}</p>
        </details>`;
  }

  const curves = (result) =>
    result.arms
      .filter((arm) => arm.curve.length)
      .map((arm, k) => {
        const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
        return {
          label: full(arm.label),
          colour: mage.colour(k),
          xs: arm.curve.map((one) => one[0]),
          ys: arm.curve.map((one) => mean(one[1])),
          low: arm.curve.map((one) => Math.min(...one[1])),
          high: arm.curve.map((one) => Math.max(...one[1])),
        };
      });

  // Moves by state and episode: one line a state and move, one column an episode of every method.
  function Choices({choices}) {
    const line = (state) =>
      mage
        .clean(state)
        .split("\n")
        .map((one) => one.trim())
        .filter(Boolean)
        .join(" / ");
    return html`<h3>Moves by state and episode</h3>
      <p class="quiet">Share of each move in a state, in per cent, by episode. Stored meta-episodes: ${choices.arms.map((arm) => `${full(arm.label)} ${arm.meta_episodes}`).join(", ")}.</p>
      <div class="scroll"><table class="heat"><thead><tr><th class="left">state</th><th
        class="left">move</th>${choices.arms.map((arm) => html`<th
        colspan=${arm.shares[0] ? arm.shares[0].length : 1}>${full(arm.label)}</th>`)}</tr></thead>
      <tbody>${choices.rows.map(
        (
          [state, move],
          row,
        ) => html`<tr class=${row && choices.rows[row - 1][0] === state ? "" : "first"}><td
          class="left state">${row && choices.rows[row - 1][0] === state ? "" : line(state)}</td>
          <td class="left">${mage.clean(move)}</td>
        ${choices.arms.map((arm) => arm.shares[row].map((share) => html`<td class="share"
          style=${share === null ? "" : `background:color-mix(in srgb, var(--won) ${Math.round(75 * share)}%, transparent)`}>${share === null ? "" : Math.round(100 * share)}</td>`))}</tr>`,
      )}</tbody></table></div>`;
  }

  function World({result, sentences, choices}) {
    if (!result.arms.length)
      return html`<h2>${[result.world, result.variant].filter(Boolean).join(", ")}</h2><p
        class="quiet">No run is finished yet.</p>`;
    return html`<h2>${[result.world, result.variant].filter(Boolean).join(", ")}, ${result.split} panel</h2><${Intervals} result=${result} />
      ${sentences && html`<ul class="verdict">${sentences.map((one) => html`<li>${one}</li>`)}
        </ul>`}
      <${Figures} result=${result} /><${Pairs} result=${result} />
      <${mage.Plot}
        title=${`${{score: "Score", success: "Success", draws: "Draws"}[result.measure]} of the last episode, over training`} percent=${result.measure !== "score"} height=${280}
        yLabel=${result.measure}
        note="Select panel: mean and range over seeds." lines=${curves(result)} />
      ${choices && html`<${Choices} choices=${choices} />`}
      ${result.budget_faults.map((one) => html`<p
        class="problem">Budgets are not equal: ${mage.clean(one)}.</p>`)}
      ${result.missing.length > 0 && html`<p
        class="quiet">${result.missing.length} runs are missing: ${result.missing.slice(0, 6).join(", ")}${result.missing.length > 6 ? " …" : ""}</p>`}`;
  }

  mage.TableView = ({id}) => {
    const {value, error} = mage.useData(`table/${id}`);
    if (!value) return html`<${mage.Loading} error=${error} />`;
    return html`<div class="bar"><h1>${mage.clean(value.title || value.table)}</h1></div>
      <p class="quiet">${value.title ? `${value.table}, ` : ""}model ${mage.clean(value.model)}, ${value.scale} scale, seeds ${(value.seeds || []).join(", ")}</p>
      ${value.results.map((result, k) => html`<${World}
        key=${[result.world, result.variant, result.split].join()} result=${result}
        sentences=${value.sentences && value.sentences[k]}
        choices=${value.choices && value.choices[k]} />`)}
      <h2>How to read this</h2>
        <p>All methods of an environment play the same panel of tasks with the same random numbers. Rates have Wilson intervals over tasks; scores and
      differences have bootstrap intervals over tasks and seeds (95 %). Differences are paired by task and seed. The checkpoint of a run is chosen on another panel. ${mage.clean(value.note || "")}</p>`;
  };
})();
