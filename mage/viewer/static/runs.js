// The list of runs: state, progress, last score; search, sort, select to compare.
"use strict";
(function () {
  const {html, useState, useRef} = htmPreact;

  const valueOf = (run, name) =>
    name === "score"
      ? run.score && run.score.value
      : name === "progress"
        ? run.total
          ? run.updates / run.total
          : null
        : run[name];

  mage.Progress = ({
    done,
    total,
  }) => html`<span class="progress" title=${`update ${done} of ${total}`}>
    <i style=${`width:${total ? Math.min(100, (100 * done) / total) : 100}%`}></i>
      <b>${done.toLocaleString("en")}${total ? ` / ${total.toLocaleString("en")}` : ""}</b></span>`;

  mage.RunsView = () => {
    const {value, error} = mage.useData("runs", () => 4);
    const [query, setQuery] = useState("");
    const [chosen, setChosen] = useState([]);
    const [at, setAt] = useState(-1);
    const search = useRef(null);
    const runs = (value ? value.runs : []).filter((run) =>
      query
        .toLowerCase()
        .split(/\s+/)
        .every((word) =>
          [run.id, run.title, run.environment, run.state, ...(run.opponents || [])]
            .join(" ")
            .toLowerCase()
            .includes(word),
        ),
    );
    // Runs of several folders may share a name; their ids differ.
    const titles = (value ? value.runs : []).map((run) => run.title);
    const titleOf = (run) =>
      mage.clean(titles.indexOf(run.title) === titles.lastIndexOf(run.title) ? run.title : run.id);
    const {sorted, head} = mage.useSort(runs, "started", valueOf);
    const toggle = (id) =>
      setChosen(chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id]);
    mage.useKeys({
      "/": () => search.current.focus(),
      j: () => setAt(Math.min(sorted.length - 1, at + 1)),
      k: () => setAt(Math.max(0, at - 1)),
      x: () => sorted[at] && toggle(sorted[at].id),
      Enter: () => sorted[at] && (location.hash = mage.link("run", sorted[at].id)),
      c: () => chosen.length > 1 && (location.hash = mage.link("compare", chosen.join(","))),
    });
    if (!value) return html`<${mage.Loading} error=${error} />`;
    return html`
      <div class="bar">
        <h1>Runs</h1>
        <input type="search" ref=${search} placeholder="Search (press /)" aria-label="Search runs"
          value=${query}
          onInput=${(event) => setQuery(event.target.value)} />
        <a class=${`button primary ${chosen.length > 1 ? "" : "off"}`} id="compare"
          href=${chosen.length > 1 ? mage.link("compare", chosen.join(",")) : undefined}>Compare ${chosen.length > 1 ? chosen.length : "selected"}</a>
      </div>
      ${!sorted.length && html`<p
        class="quiet empty">No run matches. A run appears here as soon as its folder exists.</p>`}
      ${
        sorted.length > 0 &&
        html`<div class="scroll"><table class="runs" id="runs">
        <thead><tr><th>
          </th>${head("title", "run", "left")}${head("environment", "environment", "left")}
          ${head("state", "state", "left")}${head("progress", "progress", "left")}${head("score", "last episode")}
          ${head("seconds", "time")}${head("started", "started")}</tr></thead>
        <tbody>${sorted.map(
          (run, k) => html`<tr class=${k === at ? "at" : ""} key=${run.id} data-id=${run.id}>
          <td><input type="checkbox" aria-label=${`Select ${run.title}`}
            checked=${chosen.includes(run.id)} onChange=${() => toggle(run.id)} /></td>
          <td class="left"><a href=${mage.link("run", run.id)}>${titleOf(run)}</a>
            ${run.warnings &&
            run.warnings.length > 0 && html` <span class="flag"
              title=${`${run.warnings.length} warnings`}>⚠ ${run.warnings.length}</span>`}</td>
          ${
            run.state === "damaged"
              ? html`<td class="left problem" colspan="6">${mage.clean(run.error)}</td>`
              : html`<td class="left">${run.environment}</td>
              <td class="left"><${mage.State} state=${run.state} /></td>
              <td class="left"><${mage.Progress} done=${run.updates} total=${run.total} /></td>
              <td><${mage.Estimate} found=${run.score} percent=${run.percent} /></td>
              <td>${run.seconds ? mage.duration(run.seconds) : "–"}</td><td>${run.started === null ? "–" : mage.date(run.started)}</td>`
          }
        </tr>`,
        )}</tbody></table></div>`
      }
      ${
        value.tables.length > 0 &&
        html`<h2>Tables of reproductions</h2>
        <ul class="tables">${value.tables.map(
          (
            table,
          ) => html`<li key=${table.id}><a href=${mage.link("table", table.id)}>${table.table}</a>${" "}<span class="quiet">${table.scale} scale, model ${table.model}, ${(table.seeds || []).length} seeds, ${(table.worlds || []).join(", ")}</span></li>`,
        )}</ul>`
      }`;
  };
})();
