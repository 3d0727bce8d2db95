// The table of all stored meta-episodes of a run, with filters.
"use strict";
(function () {
  const {html, useState, useEffect} = htmPreact;
  const FILTERS = {set: "", opponent: "", seat: "", outcome: "", gain: "", illegal: ""};

  // Sets load one after the other, so the first rows appear at once; the chosen set comes first.
  function useSets(id, names, chosen) {
    const [sets, setSets] = useState({});
    useEffect(() => {
      let active = true;
      (async () => {
        for (const name of [...names].sort((a, b) => (b === chosen) - (a === chosen))) {
          try {
            const found = await mage.load(`run/${id}/index/${name}`);
            if (!active) return;
            const rows = found.rows.map((row) =>
              Object.fromEntries([
                ["set", name],
                ...found.columns.map((column, k) => [column, row[k]]),
              ]),
            );
            setSets((old) => ({...old, [name]: {rows, stored: found.stored || rows.length}}));
          } catch (error) {
            if (active)
              setSets((old) => ({...old, [name]: {rows: [], stored: 0, error: error.message}}));
          }
        }
      })();
      return () => {
        active = false;
      };
    }, [id, names.join(" ")]);
    return sets;
  }

  const matches = (row, filters) =>
    (!filters.set || row.set === filters.set) &&
    (!filters.opponent || row.opponent === filters.opponent) &&
    (!filters.seat || String(row.seat) === filters.seat) &&
    (!filters.outcome || row.outcomes[row.outcomes.length - 1] === filters.outcome) &&
    (!filters.gain ||
      (filters.gain === "gain"
        ? row.gain > 0
        : filters.gain === "loss"
          ? row.gain < 0
          : row.gain === 0)) &&
    (!filters.illegal || (filters.illegal === "yes") === row.illegal > 0);

  const brief = (value) => mage.score(value, Number.isInteger(value) ? 0 : 2);
  const scoresText = (scores) =>
    scores.length <= 5
      ? scores.map(brief).join("  ")
      : `${brief(scores[0])} → ${brief(scores[scores.length - 1])}`;

  const Select = ({name, title, options, filters, set}) => html`<label>${title}
    <select name=${name} value=${filters[name]}
      onChange=${(event) => set({...filters, [name]: event.target.value})}>
      <option value="">all</option>${options.map(([value, text]) => html`<option
        value=${value}>${text}</option>`)}</select></label>`;

  // A copy without its stored meta-episodes has some transcripts as text: headings and paragraphs are enough to read them.
  function Written({id, run}) {
    const {value, error} = mage.useData(run.has_text ? `run/${id}/text` : null);
    if (!run.has_text)
      return html`<p
        class="quiet empty">No meta-episodes are stored. Set run.episodes_every in the recipe.</p>`;
    if (!value) return html`<${mage.Loading} error=${error} />`;
    const [, ...parts] = value.text.split(/^(?=###? )/m);
    return html`<p class="quiet">This copy of a run has some transcripts as text.</p>
      ${parts.map((part) => {
        const [title, ...lines] = part.split("\n");
        const text = lines.join("\n").trim();
        return title.startsWith("###")
          ? html`<details class="written"><summary>${mage.clean(title.slice(4))}</summary>
              <${mage.Text} text=${text} kind="block" /></details>`
          : html`<h2>${mage.clean(title.slice(3))}</h2>${text && html`<p class="quiet">${mage.clean(text)}</p>`}`;
      })}`;
  }

  mage.EpisodesView = ({id, run, query}) => {
    const sets = useSets(id, run.stored, query.set);
    const [filters, setFilters] = useState({...FILTERS, ...query});
    const [at, setAt] = useState(-1);
    const all = run.stored.flatMap((name) => (sets[name] ? sets[name].rows : []));
    const rows = all.filter((row) => matches(row, filters));
    const {sorted, button} = mage.useSort(rows, "", (row, name) =>
      name === "last" ? row.scores[row.scores.length - 1] : row[name],
    );
    const open = (row) => mage.link("run", id, "meta", row.set, row.number);
    mage.useKeys({
      j: () => setAt(Math.min(sorted.length - 1, at + 1)),
      k: () => setAt(Math.max(0, at - 1)),
      Enter: () => sorted[at] && (location.hash = open(sorted[at])),
    });
    if (!run.stored.length) return html`<${Written} id=${id} run=${run} />`;
    const opponents = [...new Set(all.map((row) => row.opponent))].filter(Boolean).sort();
    const longest = rows.reduce((most, row) => Math.max(most, row.outcomes.length), 0);
    const loading = Object.keys(sets).length < run.stored.length;
    const left = run.stored.reduce(
      (sum, name) => sum + (sets[name] ? sets[name].stored - sets[name].rows.length : 0),
      0,
    );
    return html`<div class="filters">
        <${Select} name="set" title="Set" filters=${filters} set=${setFilters}
          options=${run.stored.map((name) => [name, mage.setName(name)])} />
        ${opponents.length > 0 && html`<${Select} name="opponent" title="Opponent"
          filters=${filters} set=${setFilters}
          options=${opponents.map((one) => [one, mage.clean(one)])} />`}
        ${
          opponents.length > 0 &&
          html`<${Select} name="seat" title="Seat" filters=${filters} set=${setFilters}
          options=${[
            ["0", "first"],
            ["1", "second"],
          ]} />`
        }
        <${Select} name="outcome" title="Last episode" filters=${filters} set=${setFilters}
          options=${[
          ["w", "won"],
          ["l", "lost"],
          ["d", "drawn"],
        ]} />
        <${Select} name="gain" title="First to last" filters=${filters} set=${setFilters}
          options=${[
          ["gain", "gain"],
          ["loss", "loss"],
          ["same", "no change"],
        ]} />
        <${Select} name="illegal" title="Illegal replies" filters=${filters} set=${setFilters}
          options=${[
          ["yes", "some"],
          ["no", "none"],
        ]} />
        <button onClick=${() => setFilters(FILTERS)}>Reset</button>
        <span class="quiet count"
          id="count">${rows.length.toLocaleString("en")} of ${all.length.toLocaleString("en")} meta-episodes${loading ? ", loading …" : ""}${left > 0 ? `; ${left.toLocaleString("en")} more are not in this copy` : ""}</span>
      </div>
      <${mage.VirtualList} rows=${sorted} selected=${at} label="Meta-episodes"
        columns=${`minmax(190px,2fr) minmax(110px,1.2fr) 70px ${Math.max(90, 15 * longest + 16)}px minmax(130px,1.3fr) 80px 70px 70px 80px`}
        header=${html`${[
          ["set", "set", "left"],
          ["opponent", "opponent", "left"],
          ["seat", "seat"],
          ["outcomes", "episodes", "left"],
          ["last", "scores"],
          ["gain", "gain"],
          ["illegal", "illegal"],
          ["cut_off", "cut off"],
          ["tokens", "tokens"],
        ].map(
          ([name, title, kind]) =>
            html`<span role="columnheader" class=${kind || ""}>${button(name, title)}</span>`,
        )}`}
        render=${(
          row,
          k,
          on,
        ) => html`<div class=${`vrow ${on ? "at" : ""}`} role="row"
          key=${`${row.set}/${row.number}`} onClick=${() => (location.hash = open(row))}>
          <span role="cell" class="left"><a href=${open(row)}><small
            class="quiet">#${row.number}</small> ${mage.setName(row.set)}</a> <small
            class="quiet">${row.set.startsWith("step") ? `g${row.group} m${row.member}` : ""}</small></span>
          <span role="cell" class="left">${mage.clean(row.opponent) || "–"}</span>
          <span role="cell" class=${row.opponent ? "" : "quiet"}>${row.opponent ? mage.seat(row.seat) : "–"}</span>
          <span role="cell" class="left"><${mage.Cells} outcomes=${row.outcomes}
            scores=${row.scores} /></span>
          <span role="cell">${scoresText(row.scores)}</span>
          <span role="cell" class=${row.gain > 0 ? "up" : row.gain < 0 ? "down" : "quiet"}>${brief(row.gain)}</span>
          <span role="cell" class=${row.illegal ? "down" : "quiet"}>${row.illegal}</span>
          <span role="cell" class=${row.cut_off ? "down" : "quiet"}>${row.cut_off}</span>
          <span role="cell">${row.tokens}</span></div>`} />`;
  };
})();
