// A table whose rows are drawn only where they are visible, so 10,000 rows stay fast.
"use strict";
(function () {
  const {html, useState, useRef, useEffect} = htmPreact;
  const ROW = 36; // height of a row in pixels

  mage.useSort = (rows, first, valueOf) => {
    const [sort, setSort] = useState({by: first, down: true});
    const sorted = [...rows].sort((a, b) => {
      const [x, y] = [valueOf(a, sort.by) ?? null, valueOf(b, sort.by) ?? null];
      if (x === y) return 0;
      if (x === null || y === null) return x === null ? 1 : -1; // no value: last in both orders
      return x < y === sort.down ? 1 : -1;
    });
    const order = (name) => (sort.by === name ? (sort.down ? "descending" : "ascending") : "none");
    const button = (
      name,
      title,
    ) => html`<button class="head"
      onClick=${() => setSort({by: name, down: sort.by === name ? !sort.down : true})}>
      ${title}<i>${sort.by === name ? (sort.down ? "▾" : "▴") : ""}</i></button>`;
    const head = (name, title, kind = "") =>
      html`<th class=${kind} aria-sort=${order(name)}>${button(name, title)}</th>`;
    return {sorted, head, button};
  };

  mage.VirtualList = ({rows, render, header, label, selected = -1, height = "70vh", columns}) => {
    const place = useRef(null);
    const [view, setView] = useState({top: 0, height: 800});
    const read = () =>
      place.current && setView({top: place.current.scrollTop, height: place.current.clientHeight});
    useEffect(read, [rows.length]);
    useEffect(() => {
      const box = place.current;
      if (!box || selected < 0) return;
      const head = box.querySelector(".vhead").offsetHeight;
      if (selected * ROW < box.scrollTop) box.scrollTop = selected * ROW;
      if ((selected + 1) * ROW > box.scrollTop + box.clientHeight - head)
        box.scrollTop = (selected + 1) * ROW - box.clientHeight + head;
    }, [selected]);
    const first = Math.max(0, Math.floor(view.top / ROW) - 8);
    const last = Math.min(rows.length, Math.ceil((view.top + view.height) / ROW) + 8);
    return html`<div class="virtual" style=${`max-height:${height};--columns:${columns}`}
      ref=${place} onScroll=${read}
        tabindex="0" role="table" aria-label=${label} aria-rowcount=${rows.length + 1}>
      <div class="vrow vhead" role="row">${header}</div>
      <div role="presentation" style=${`height:${first * ROW}px`}></div>
      ${rows.slice(first, last).map((row, k) => render(row, first + k, first + k === selected))}
      <div role="presentation" style=${`height:${(rows.length - last) * ROW}px`}></div>
    </div>`;
  };
})();
