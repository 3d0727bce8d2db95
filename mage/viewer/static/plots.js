// Plots with uPlot: lines, points with intervals, exact lines, hover, and zoom by dragging.
"use strict";
(function () {
  const {html, useRef, useLayoutEffect, useState} = htmPreact;
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  mage.ink = () => colour("--ink");
  mage.smooth = (values) => {
    const half = Math.floor(values.length / 80) + (values.length > 10 ? 1 : 0);
    return values.map((value, k) => {
      const near = values.slice(Math.max(0, k - half), k + half + 1).filter((one) => one !== null);
      return value === null || !near.length ? null : near.reduce((a, b) => a + b, 0) / near.length;
    });
  };

  // One table of all x values; every line gets null where it has no value.
  function align(lines) {
    const xs = [...new Set(lines.flatMap((line) => line.xs))].sort((a, b) => a - b);
    const place = new Map(xs.map((x, k) => [x, k]));
    const columns = lines.map((line) => {
      const column = new Array(xs.length).fill(null);
      line.xs.forEach((x, k) => (column[place.get(x)] = line.ys[k] ?? null));
      return column;
    });
    return [xs, ...columns];
  }

  const isNumber = (value) => value !== null && value !== undefined;

  // A line with intervals, moved aside by some pixels so that several of them can be told apart.
  // Line, points and bars move together; the points of a select panel have no line.
  function drawIntervals(u, line, ratio, aside) {
    const {ctx} = u;
    ctx.strokeStyle = ctx.fillStyle = line.colour;
    ctx.setLineDash([]);
    if (!line.points) {
      ctx.lineWidth = 2 * ratio;
      ctx.beginPath();
      line.xs.forEach(
        (x, k) =>
          isNumber(line.ys[k]) &&
          ctx.lineTo(u.valToPos(x, "x", true) + aside, u.valToPos(line.ys[k], "y", true)),
      );
      ctx.stroke();
    }
    ctx.lineWidth = 1.6 * ratio;
    line.xs.forEach((x, k) => {
      if (!isNumber(line.ys[k])) return;
      const left = u.valToPos(x, "x", true) + aside;
      if (isNumber(line.low[k])) {
        ctx.globalAlpha = 0.5;
        ctx.beginPath();
        ctx.moveTo(left, u.valToPos(line.low[k], "y", true));
        ctx.lineTo(left, u.valToPos(line.high[k], "y", true));
        ctx.stroke();
      }
      ctx.globalAlpha = 1;
      ctx.beginPath();
      ctx.arc(left, u.valToPos(line.ys[k], "y", true), 3.6 * ratio, 0, 2 * Math.PI);
      ctx.fill();
    });
    ctx.globalAlpha = 1;
  }

  // A vertical line with a name where a stage of the training begins.
  function drawBorders(u, borders, ratio) {
    const {ctx} = u;
    ctx.strokeStyle = ctx.fillStyle = colour("--quiet");
    ctx.lineWidth = ratio;
    ctx.setLineDash([]);
    borders.forEach(({update, name}) => {
      const x = u.valToPos(update, "x", true);
      ctx.beginPath();
      ctx.moveTo(x, u.bbox.top);
      ctx.lineTo(x, u.bbox.top + u.bbox.height);
      ctx.stroke();
      ctx.fillText(name, x + 4 * ratio, u.bbox.top + 11 * ratio);
    });
  }

  function drawExtras(u, {lines, bounds = [], borders = [], right, percent}) {
    const {ctx} = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(u.bbox.left, u.bbox.top, u.bbox.width, u.bbox.height);
    ctx.clip();
    const ratio = devicePixelRatio || 1;
    const panels = lines.filter((line) => line.low);
    panels.forEach((line, number) =>
      drawIntervals(u, line, ratio, 5 * ratio * (number - (panels.length - 1) / 2)),
    );
    ctx.font = `${11 * ratio}px system-ui, sans-serif`;
    ctx.textAlign = "left";
    ctx.textBaseline = "alphabetic";
    drawBorders(u, borders, ratio);
    bounds.forEach((bound, k) => {
      const y = u.valToPos(bound.y, "y", true);
      ctx.strokeStyle = ctx.fillStyle = colour("--ink");
      ctx.setLineDash(k % 2 ? [2 * ratio, 4 * ratio] : [7 * ratio, 5 * ratio]);
      ctx.lineWidth = 1.2 * ratio;
      ctx.beginPath();
      ctx.moveTo(u.bbox.left, y);
      ctx.lineTo(u.bbox.left + u.bbox.width, y);
      ctx.stroke();
      // The lower one of two close lines has its label below.
      const close = bounds.some(
        (other) =>
          other.y > bound.y && Math.abs(u.valToPos(other.y, "y", true) - y) < 18 * ratio,
      );
      const text = `${bound.label} ${mage.figure(bound.y, percent)}`;
      const base = close ? y + 14 * ratio : y - 5 * ratio;
      ctx.globalAlpha = 0.75;
      ctx.fillStyle = colour("--paper");
      const width = ctx.measureText(text).width + 6 * ratio;
      const left = u.bbox.left + (right ? u.bbox.width - width : 3 * ratio);
      ctx.fillRect(left, base - 11 * ratio, width, 14 * ratio);
      ctx.globalAlpha = 1;
      ctx.fillStyle = colour("--ink");
      ctx.fillText(text, left + 3 * ratio, base);
    });
    ctx.restore();
  }

  function yRange(lines, bounds, zero) {
    return (u, low, high) => {
      const extra = [
        ...bounds.map((one) => one.y),
        ...(zero ? [0] : []),
        ...lines.flatMap((line) => (line.low ? [...line.low, ...line.high] : [])),
      ];
      const values = [low, high, ...extra].filter(
        (one) => typeof one === "number" && Number.isFinite(one),
      );
      if (!values.length) return [0, 1];
      const [bottom, top] = [Math.min(...values), Math.max(...values)];
      const pad = 0.06 * (top - bottom) || Math.abs(top) * 0.1 || 1;
      return [zero && bottom >= 0 ? 0 : bottom - pad, top + pad];
    };
  }

  function options(props, size, onHover) {
    const {lines, bounds = [], percent, zero, sync, xLabel = "update", yLabel} = props;
    const axis = {
      stroke: colour("--quiet"),
      grid: {stroke: colour("--line"), width: 1},
      ticks: {show: false},
      font: "11px system-ui, sans-serif",
      labelFont: "11px system-ui, sans-serif",
      labelSize: 16,
      labelGap: 2,
    };
    return {
      ...size,
      legend: {show: false},
      cursor: {
        sync: sync ? {key: sync, setSeries: false} : undefined,
        y: false,
        drag: {x: true, y: false},
        points: {size: 7},
      },
      scales: {
        x: {
          time: false,
          range: (u, low, high) =>
            high > low
              ? [low - 0.03 * (high - low), high + 0.03 * (high - low)]
              : [low - 1, high + 1],
        },
        y: {range: yRange(lines, bounds, zero)},
      },
      axes: [
        {
          ...axis,
          grid: {show: false},
          size: 26,
          label: xLabel,
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000],
        },
        {
          ...axis,
          size: 58,
          label: yLabel,
          values: (u, values) =>
            values.map((value) =>
              percent ? `${Number((100 * value).toPrecision(3))} %` : mage.short(value),
            ),
        },
      ],
      series: [
        {},
        ...lines.map((line) => ({
          label: line.label,
          stroke: line.colour,
          alpha: line.faint ? 0.25 : 1,
          width: line.low ? 0 : line.faint ? 1 : 2, // drawIntervals draws lines with intervals
          dash: line.dash,
          spanGaps: true,
          points: {show: !line.low && line.xs.length < 2, size: 6},
        })),
      ],
      hooks: {
        draw: [(u) => drawExtras(u, props)],
        setCursor: [
          (u) =>
            onHover(
              u.cursor.left < 0 || u.cursor.idx === null
                ? null
                : {idx: u.cursor.idx, left: u.cursor.left},
            ),
        ],
      },
    };
  }

  mage.Plot = (props) => {
    const {title, note, lines, percent, height = 220, xLabel = "update", legend = true} = props;
    const place = useRef(null);
    const chart = useRef(null);
    const [hover, setHover] = useState(null);
    const data = align(lines);
    const key = JSON.stringify([data, props.bounds, props.borders, mage.theme, lines.map((one) => one.label)]);
    useLayoutEffect(() => {
      if (!lines.length) return undefined;
      const size = () => ({width: Math.max(220, place.current.clientWidth), height});
      chart.current = new uPlot(options(props, size(), setHover), data, place.current);
      const watch = new ResizeObserver(() => chart.current && chart.current.setSize(size()));
      watch.observe(place.current);
      return () => {
        watch.disconnect();
        chart.current.destroy();
        chart.current = null;
      };
    }, [key]);
    const format = (value) => (percent ? mage.percent(value) : mage.short(value));
    const named = lines.filter((line) => line.label && !line.faint);
    return html`<figure class="plot">
      <figcaption><b>${title}</b>
        <span class="legend">${
          legend &&
          named
            .filter((line, k) => named.findIndex((one) => one.label === line.label) === k)
            .map(
              (line) =>
                html`<span><i style=${`background:${line.colour}`}></i>${line.label}</span>`,
            )
        }</span>
      </figcaption>
      ${note && html`<p class="quiet note">${note}</p>`}
      ${
        lines.length
          ? html`<div class="canvas" ref=${place} role="img"
              aria-label=${`${title}, by ${xLabel}: ${[...new Set(named.map((line) => line.label))].join(", ")}`}>
            ${
              hover &&
              html`<div class="tip"
                style=${hover.left > (place.current ? place.current.clientWidth : 400) / 2 ? `left:60px` : `right:8px`}>
              <b>${xLabel} ${data[0][hover.idx]}</b>
              ${lines.map(
                (line, k) =>
                  line.label &&
                  data[k + 1][hover.idx] !== null &&
                  data[k + 1][hover.idx] !== undefined &&
                  html`<div><i style=${`background:${line.colour}`}>
                    </i>${line.label}${line.faint ? " (raw)" : line.points ? " (panel)" : ""}
                  <b>${format(data[k + 1][hover.idx])}</b></div>`,
              )}
            </div>`
            }</div>`
          : html`<p class="quiet empty">No data yet.</p>`
      }
    </figure>`;
  };

  // Lines of one metric of several runs; with one run the raw values stand behind the smoothed ones.
  mage.metricLines = (runs, name, label) =>
    runs.flatMap((run, k) => {
      const table = name.startsWith("time:") ? run.timing : run.metrics;
      const values = table[name.replace("time:", "")];
      if (!values || values.every((value) => value === null)) return [];
      const shade = run.colour || mage.colour(k);
      const line = {label: label || run.title, colour: shade, xs: table.update};
      return runs.length > 1
        ? [{...line, ys: mage.smooth(values)}]
        : [
            {...line, ys: values, faint: true},
            {...line, ys: mage.smooth(values)},
          ];
    });
})();
