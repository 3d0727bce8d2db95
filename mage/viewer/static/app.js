// The frame of the page: navigation by the address, keys, theme, and errors.
"use strict";
(function () {
  const {html, render, useState, useEffect, useLayoutEffect, useErrorBoundary} = htmPreact;
  const KEYS = [
    ["/", "search runs"],
    ["j, k", "next, previous row"],
    ["x", "select a run"],
    ["c", "compare selected runs"],
    ["Enter", "open the row"],
    ["← →", "previous, next meta-episode"],
    ["Esc", "back; leave the search box"],
    ["r", "list of runs"],
    ["t", "dark or light"],
    ["?", "this help"],
  ];

  function remember(name, value) {
    try {
      return value === undefined ? localStorage.getItem(name) : localStorage.setItem(name, value);
    } catch (error) {
      return null;
    }
  }

  mage.useKeys = (keys) => {
    // Before the next frame: a key that follows what is shown must not reach the old handler.
    useLayoutEffect(() => {
      const press = (event) => {
        if (event.key === "Escape" && event.target.matches("input, select")) event.target.blur();
        if (
          event.ctrlKey ||
          event.metaKey ||
          event.altKey ||
          /INPUT|SELECT|TEXTAREA/.test(event.target.tagName)
        )
          return;
        if (event.key === "Enter" && /^(A|BUTTON|SUMMARY)$/.test(event.target.tagName)) return;
        if (!keys[event.key]) return;
        event.preventDefault();
        keys[event.key]();
      };
      addEventListener("keydown", press);
      return () => removeEventListener("keydown", press);
    });
  };

  function readAddress() {
    const start =
      window.mageStatic && window.mageStatic.start ? `#/${window.mageStatic.start}` : "#/";
    const [path, query] = (location.hash || start).slice(2).split("?");
    const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
    return {parts, query: Object.fromEntries(new URLSearchParams(query || ""))};
  }

  function View({parts, query}) {
    const [kind, id, tab, name, number] = parts;
    if (!kind) return html`<${mage.RunsView} />`;
    if (kind === "run" && id && tab === "meta")
      return html`<${mage.MetaView} key=${`${id}/${name}`} id=${id} name=${name}
        number=${Number(number)} query=${query} />`;
    if (kind === "run" && id)
      return html`<${mage.RunView} key=${id} id=${id} tab=${tab || ""} query=${query} />`;
    if (kind === "compare" && id)
      return html`<${mage.CompareView} key=${id} ids=${id.split(",")} />`;
    if (kind === "table" && id) return html`<${mage.TableView} key=${id} id=${id} />`;
    return html`<p class="problem">There is no page ${parts.join("/")}.</p>`;
  }

  function titleOf([kind, id, tab, name, number]) {
    const view = {episodes: "meta-episodes", strip: "adaptation", recipe: "recipe"}[tab];
    const parts = {
      run: tab === "meta" ? [`${mage.setName(name)} #${number}`, id] : [view, id],
      compare: [`compare ${(id || "").split(",").join(" and ")}`],
      table: [id],
    }[kind];
    return [...(parts || ["runs"]), "MAGE"].filter(Boolean).join(" · ");
  }

  function Safe(props) {
    const [error, reset] = useErrorBoundary();
    useEffect(() => reset(), [props.address]);
    return error
      ? html`<p class="problem" role="alert">This view failed: ${error.message}</p>`
      : html`<${View} ...${props} />`;
  }

  function Crumbs({parts}) {
    const [kind, id, tab, name] = parts;
    return html`<nav class="crumbs" aria-label="Path"><a href="#/">Runs</a>
      ${kind === "run" && id && html`<span>/</span><a href=${mage.link("run", id)}>${id}</a>`}
      ${tab === "meta" && html`<span>/</span><a
        href=${mage.link("run", id, "episodes")}>meta-episodes</a><span>/</span><span>${name}
        </span>`}
      ${(kind === "compare" || kind === "table") && html`<span>/</span>
        <span>${kind === "table" ? id : "compare"}</span>`}</nav>`;
  }

  function App() {
    const [address, setAddress] = useState(readAddress());
    const [theme, setTheme] = useState(remember("mage-theme") || "");
    const [help, setHelp] = useState(false);
    mage.theme = theme;
    useEffect(() => {
      const change = () => {
        setAddress(readAddress());
        scrollTo(0, 0);
      };
      addEventListener("hashchange", change);
      return () => removeEventListener("hashchange", change);
    }, []);
    useEffect(() => {
      document.title = titleOf(address.parts);
    }, [address]);
    const dark = mage.isDark();
    const swap = () => {
      const next = dark ? "light" : "dark";
      remember("mage-theme", next);
      document.documentElement.dataset.theme = next;
      setTheme(next);
    };
    mage.useKeys({
      "?": () => setHelp(!help),
      r: () => (location.hash = "#/"),
      t: swap,
      ...(help ? {Escape: () => setHelp(false)} : {}),
    });
    return html`<header class="top"><a class="logo" href="#/">MAGE</a><${Crumbs}
      parts=${address.parts} />
        <span class="grow"></span>${mage.isStatic && html`<span class="quiet">static copy</span>`}
        <button onClick=${swap} aria-label="Dark or light">${dark ? "☀" : "☾"}</button><button
          onClick=${() => setHelp(!help)} aria-label="Keys">?</button></header>
      <main><${Safe} ...${address} address=${location.hash} /></main>
      ${
        help &&
        html`<div class="help" role="dialog" aria-label="Keys"><h2>Keys</h2>
          <dl>${KEYS.map(([key, text]) => html`<div><dt><kbd>${key}</kbd></dt><dd>${text}</dd>
          </div>`)}</dl>
        <button onClick=${() => setHelp(false)}>Close</button></div>`
      }`;
  }

  const theme = remember("mage-theme");
  if (theme) document.documentElement.dataset.theme = theme;
  const place = document.getElementById("app");
  place.textContent = "";
  render(html`<${App} />`, place);
})();
