// Tables of `mage reproduce`: intervals as a plot first, then figures, curves and pairs.
"use strict";
(function () {
  const {html} = htmPreact;
  let [titles, colours] = [{}, {}]; // of the arms, from the table that is shown
  const full = (label) => titles[label] || mage.clean(label);
  const MEASURES = {pass_at: "Pass", draw_at: "Draw"};
  const named = (measure, k) =>
    MEASURES[measure] ? `${MEASURES[measure]}@${k}` : `${measure} in episode ${k}`;
  const lastOf = (result) => result.arms[0].episodes.length;

  function Intervals({result}) {
    const percent = result.measure !== "score";
    const rows = result.arms.map((arm) => ({
      arm,
      first: arm.episodes[0][result.measure],
      last: arm.episodes[arm.episodes.length - 1][result.measure],
    }));
    const lines = result.bounds && !percent
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
      aria-label=${`${named(result.measure, lastOf(result))} with 95 % intervals`}>
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
            <title>${named(result.measure, lastOf(result))}: ${mage.figure(last.value, percent)}</title></circle>
          <text x=${left + width + 12} y=${y + 4} class="value">${mage.figure(last.value, percent)}
            </text>`;
      })}</svg></div>
      <p class="quiet">Filled: ${named(result.measure, lastOf(result))} with its 95 % interval (grey: without training). Hollow: ${named(result.measure, 1)}.</p>`;
  }

  function Figures({result}) {
    const last = lastOf(result);
    const paper = result.arms.some((arm) => (arm.paper || []).length);
    const percent = result.measure !== "score";
    // A table that compares an episode still shows Pass@k, and one that compares draws shows both.
    const others = ["pass_at", "draw_at", "draws", "success", "score"].filter(
      (name) =>
        name !== result.measure &&
        result.arms[0].episodes[0][name] &&
        (result.measure.startsWith("draw") || !name.startsWith("draw")),
    );
    const rate = (arm) => ((arm.paper || []).find(([k]) => k === last) || [])[1];
    return html`<div class="scroll"><table><thead><tr><th class="left">method</th><th>seeds</th>
      <th>tasks</th><th>${named(result.measure, last)}</th>
      ${paper && html`<th>the paper, ${named(result.measure, last)}</th>`}
      <th>gain, 1 to ${last}</th>${others.map((name) => html`<th>${named(name, last)}</th>`)}
      <th>training episodes</th></tr></thead>
      <tbody>${result.arms.map((arm) => {
        const end = arm.episodes[last - 1];
        return html`<tr class="first"><td class="left">${full(arm.label)}</td>
          <td>${arm.seeds.length}</td><td>${arm.tasks.toLocaleString("en")}</td>
        <td><${mage.Estimate} found=${end[result.measure]} percent=${percent} /></td>
        ${paper && html`<td>${rate(arm) === undefined ? "–" : mage.percent(rate(arm))}</td>`}
        <td><${mage.Estimate} found=${arm.gain} percent=${percent} signed=${true} /></td>
        ${others.map((name) => html`<td><${mage.Estimate} found=${end[name]}
          percent=${name !== "score"} /></td>`)}
        <td>${Math.round(arm.budget.training_episodes).toLocaleString("en")}</td></tr>`;
      })}</tbody></table></div>`;
  }

  // A drawing of the table's own Python code; it is an image, so no text in it can run as a script.
  const Picture = ({svg, title}) =>
    html`<img class="picture" alt=${title} src=${`data:image/svg+xml,${encodeURIComponent(svg)}`} />`;

  function Curves({pictures, curves}) {
    const paper = curves.some((panel) => panel.arms.some((arm) => arm.paper.length));
    return html`<h3>Over the episodes</h3>
      <p class="quiet">Pass@k: won at least once in the first k episodes. Draw@k: drawn at least once. Bars are 95 % intervals; dashed lines are methods without training.${paper ? " Diamonds are the paper's values." : ""}</p>
      <div class="pictures">${pictures.map((svg, k) => html`<${Picture} svg=${svg}
        title=${`${named(curves[k].measure, "k")} by episode, ${mage.splitName(curves[k].split)} panel`} />`)}</div>`;
  }

  function Draws({result}) {
    const cells = (values) => values.map((value) => html`<td>${mage.percent(value, 0)}</td>`);
    return html`<h3>Draws</h3>
      <p class="quiet">Draw@k counts a task that was drawn at least once in k episodes, as the paper does. By counting: Draw@k of an agent that draws every game as often as its first, without learning.</p>
      <div class="scroll"><table><thead><tr><th class="left">method</th><th class="left">draws</th>
      ${result.arms[0].episodes.map((one) => html`<th>${one.episode}</th>`)}</tr></thead><tbody>
      ${result.arms.map((arm) => {
        const of = (name) => arm.episodes.map((one) => one[name].value);
        const counted = arm.episodes.map((one) => 1 - (1 - of("draws")[0]) ** one.episode);
        return html`<tr class="first"><td class="left">${full(arm.label)}</td>
          <td class="left">Draw@k</td>${cells(of("draw_at"))}</tr>
          <tr><td></td><td class="left">episode k</td>${cells(of("draws"))}</tr>
          <tr><td></td><td class="left quiet">by counting</td>${cells(counted)}</tr>`;
      })}</tbody></table></div>`;
  }

  function Pairs({result, measure, pairs}) {
    const labels = result.arms.map((arm) => arm.label);
    const found = Object.fromEntries(
      pairs.flatMap((pair) => [
        [`${pair.first}|${pair.second}`, {...pair, sign: 1}],
        [`${pair.second}|${pair.first}`, {...pair, sign: -1}],
      ]),
    );
    const real = (pair) =>
      (pair.seeds > 1 || !pair.trained) &&
      pair.adjusted < 0.05 &&
      (pair.difference.difference.low > 0 || pair.difference.difference.high < 0);
    const percent = measure !== "score";
    return html`<details class="pairs">
      <summary>All pairs: row minus column in ${named(measure, lastOf(result))} (${pairs.filter(real).length} of ${pairs.length} significant after Holm's correction)</summary>
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

  const trainingOf = (result) =>
    result.arms
      .filter((arm) => arm.curve.length)
      .map((arm, k) => {
        const mean = (values) => values.reduce((a, b) => a + b, 0) / values.length;
        return {
          label: full(arm.label),
          colour: mage.shade(colours[arm.label]) || mage.colour(k),
          xs: arm.curve.map((one) => one[0]),
          ys: arm.curve.map((one) => mean(one[1])),
          low: arm.curve.map((one) => Math.min(...one[1])),
          high: arm.curve.map((one) => Math.max(...one[1])),
        };
      });

  // Moves by state and episode: circles by frequency, the key of their rows, and two measures.
  function Choices({choices, pictures}) {
    const number = (row) => (pictures ? html`<td class="left quiet">${row + 1}</td>` : "");
    const line = (state) =>
      mage
        .clean(state)
        .split("\n")
        .map((one) => one.trim())
        .filter(Boolean)
        .join(" / ");
    return html`<h3>Moves by state and episode</h3>
      ${pictures && html`<p class="quiet">A row of a picture is a pair of state and move, listed below. The area of a circle is the share of the pair among all turns of the episode; the largest circle of all methods is ${mage.percent(Math.max(...choices.arms.flatMap((arm) => arm.frequencies.flat())), 0)}.</p>
      <div class="pictures each">${pictures.choices.map((svg, k) => html`<${Picture} svg=${svg}
        title=${`Pairs of state and move by episode, ${full(choices.arms[k].label)}`} />`)}</div>
      <p class="quiet">Repeated pairs: share of turns whose pair of state and move the same task had in the episode before. Entropy: of all pairs of an episode.</p>
      <div class="pictures">${pictures.habits.map((svg, k) => html`<${Picture} svg=${svg}
        title=${["Repeated pairs by episode", "Entropy of pairs by episode"][k]} />`)}</div>`}
      <p class="quiet">Share of each move in a state, in per cent, by episode. Stored meta-episodes: ${choices.arms.map((arm) => `${full(arm.label)} ${arm.meta_episodes}`).join(", ")}.</p>
      <div class="scroll"><table class="heat"><thead><tr>${pictures && html`<th></th>`}<th
        class="left">state</th><th
        class="left">move</th>${choices.arms.map((arm) => html`<th
        colspan=${arm.shares[0] ? arm.shares[0].length : 1}>${full(arm.label)}</th>`)}</tr></thead>
      <tbody>${choices.rows.map(
        (
          [state, move],
          row,
        ) => html`<tr class=${row && choices.rows[row - 1][0] === state ? "" : "first"}>${number(row)}<td
          class="left state">${row && choices.rows[row - 1][0] === state ? "" : line(state)}</td>
          <td class="left">${mage.clean(move)}</td>
        ${choices.arms.map((arm) => arm.shares[row].map((share) => html`<td class="share"
          style=${share === null ? "" : `background:color-mix(in srgb, var(--won) ${Math.round(75 * share)}%, transparent)`}>${share === null ? "" : Math.round(100 * share)}</td>`))}</tr>`,
      )}</tbody></table></div>`;
  }

  function Quotes({quotes, rule}) {
    return html`<h3>Reflections by trial</h3><p class="quiet">${rule}</p>
      ${quotes.map((quote, k) => html`<details class="quote" open=${k === 0}>
        <summary>${full(quote.label)}: ${quote.trials.length ? `task ${quote.task}${quote.opponent ? ` against ${mage.clean(quote.opponent)}` : ""}` : `no such task among the ${quote.searched} stored ones`}</summary>
        ${quote.trials.map((trial) => html`<p><b>Episode ${trial.episode}, ${trial.outcome}.</b> First reply:</p>
          <pre>${mage.clean(trial.reply) || "(empty)"}</pre>
          ${trial.reflection && html`<p>Reflection after it:</p><pre>${mage.clean(trial.reflection)}</pre>`}`)}
      </details>`)}`;
  }

  function World({result, sentences, choices, pictures, curves, quotes, rule}) {
    const title = [result.world, result.variant].filter(Boolean).join(", ");
    if (!result.arms.length)
      return html`<h2>${title}</h2><p class="quiet">No run is finished yet.</p>`;
    const learning = result.measure === "draw_at" ? "draws" : result.measure;
    return html`<h2>${title}, ${result.split} panel</h2><${Intervals} result=${result} />
      ${sentences && html`<ul class="verdict">${sentences.map((one) => html`<li>${one}</li>`)}
        </ul>`}
      <${Figures} result=${result} />
      <${Pairs} result=${result} measure=${result.measure} pairs=${result.pairs} />
      ${result.second && html`<${Pairs} result=${result} ...${result.second} />`}
      ${curves && curves.length > 0 && html`<${Curves} pictures=${pictures.curves}
        curves=${curves} />`}
      ${result.measure === "draw_at" && html`<${Draws} result=${result} />`}
      <${mage.Plot}
        title=${`${mage.capital(named(learning, lastOf(result)))}, over training`} percent=${learning !== "score"} height=${280}
        yLabel=${learning.replace("_at", "@k")}
        note="Select panel: mean and range over seeds." lines=${trainingOf(result)} />
      ${choices && html`<${Choices} choices=${choices} pictures=${pictures} />`}
      ${quotes && quotes.length > 0 && html`<${Quotes} quotes=${quotes} rule=${rule} />`}
      ${result.budget_faults.map((one) => html`<p
        class="problem">Budgets are not equal: ${mage.clean(one)}.</p>`)}
      ${result.missing.length > 0 && html`<p
        class="quiet">${result.missing.length} runs are missing: ${result.missing.slice(0, 6).join(", ")}${result.missing.length > 6 ? " …" : ""}</p>`}`;
  }

  mage.TableView = ({id}) => {
    const {value, error} = mage.useData(`table/${id}`);
    if (!value) return html`<${mage.Loading} error=${error} />`;
    [titles, colours] = [value.titles || {}, value.colours || {}];
    const part = (name, k) => value[name] && value[name][k]; // older tables have fewer parts
    return html`<div class="bar"><h1>${mage.clean(value.title || value.table)}</h1></div>
      <p class="quiet">${value.title ? `${value.table}, ` : ""}model ${mage.clean(value.model)}, ${value.scale} scale, seeds ${(value.seeds || []).join(", ")}</p>
      ${value.results.map((result, k) => html`<${World}
        key=${[result.world, result.variant, result.split].join()} result=${result}
        sentences=${part("sentences", k)} choices=${part("choices", k)}
        pictures=${part("pictures", k)} curves=${part("curves", k)} quotes=${part("quotes", k)}
        rule=${value.rule} />`)}
      <h2>How to read this</h2>
        <p>All methods of an environment play the same panel of tasks with the same random numbers. All intervals (95 %) are over tasks and training seeds. Differences are paired by task and seed. The checkpoint of a run is chosen on another panel. ${mage.clean(value.note || "")}</p>`;
  };
})();
