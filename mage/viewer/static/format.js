// Numbers, dates and texts as they are shown.
"use strict";
(function () {
  const {html, useState} = htmPreact;
  const LONG = 20000; // characters of a text that are shown at first

  const sign = (text) => text.replace("-", "−");
  // Colours of Okabe and Ito; on dark paper the dark ones are lighter.
  const LIGHTER = {"#0072B2": "#5AA9E6", "#009E73": "#3CC29A", "#D55E00": "#FF8A3D", "#7A5195": "#B58BD6", "#1c2024": "#d6d9de"};
  mage.isDark = () =>
    mage.theme ? mage.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  const shade = (colour) => (mage.isDark() && LIGHTER[colour]) || colour;
  mage.shade = shade;
  const COLOURS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7A5195"];
  const EPISODES = ["#56B4E9", "#009E73", "#D55E00", "#CC79A7", "#E69F00", "#0072B2"];
  const STAGES = {after: "#0072B2", before: "#8A8F98", emptied: "#E69F00"};
  mage.colour = (k) => shade(COLOURS[k % COLOURS.length]);
  mage.episodeColour = (k) => shade(EPISODES[k % EPISODES.length]);
  mage.stageColour = (stage) => shade(STAGES[stage]);

  // Digits without the sign of a zero: -0.001 with two digits is 0.00.
  const fixed = (value, digits) => {
    const text = value.toFixed(digits);
    return Number(text) === 0 ? (0).toFixed(digits) : text;
  };
  mage.score = (value, digits = 3) => {
    if (value === null || value === undefined) return "–";
    const text = fixed(value, digits);
    return sign((Number(text) > 0 ? "+" : "") + text);
  };
  mage.percent = (value, digits = 1) =>
    value === null || value === undefined ? "–" : `${sign(fixed(100 * value, digits))} %`;
  mage.figure = (value, percent) => (percent ? mage.percent(value) : mage.score(value));
  mage.short = (value) => {
    if (value === null || value === undefined) return "–";
    if (typeof value !== "number") return String(value);
    if (Number.isInteger(value)) return sign(value.toLocaleString("en"));
    const size = Math.abs(value);
    return sign(
      size !== 0 && (size < 0.001 || size >= 1e6)
        ? value.toExponential(2).replace(/\.?0+e/, "e")
        : String(Number(value.toPrecision(4))),
    );
  };
  mage.p = (value) => value.toFixed(3).replace(/^0/, "");
  mage.splitName = (split) => ({ood: "out-of-domain"})[split] || split;
  mage.duration = (seconds) => {
    if (seconds < 60) return `${Math.round(seconds)} s`;
    const minutes = Math.round(seconds / 60);
    return minutes < 60
      ? `${minutes} min`
      : `${Math.floor(minutes / 60)} h ${String(minutes % 60).padStart(2, "0")} min`;
  };
  mage.date = (seconds) => {
    const date = new Date(1000 * seconds);
    const two = (number) => String(number).padStart(2, "0");
    const day = `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
    return `${day} ${two(date.getHours())}:${two(date.getMinutes())}`;
  };
  mage.seat = (seat) => ["first", "second"][seat] || `seat ${seat + 1}`;
  mage.outcome = {w: "won", l: "lost", d: "drawn"};

  mage.Estimate = ({found, percent, signed}) => {
    if (!found) return html`<span class="quiet">–</span>`;
    const show = (value) =>
      percent ? (signed && value >= 0 ? "+" : "") + mage.percent(value) : mage.score(value);
    const range = (low, high) =>
      percent && !signed
        ? `${sign((100 * low).toFixed(1))} to ${mage.percent(high)}`
        : `${show(low)} to ${show(high)}`;
    const bounded = found.low !== null && found.high !== null && found.low !== undefined;
    return html`<span class="estimate">${show(found.value)}
      ${bounded && html`<small>${range(found.low, found.high)}</small>`}</span>`;
  };

  // Control and direction characters become visible signs, so that a text cannot hide anything.
  mage.clean = (text) =>
    String(text === null || text === undefined ? "" : text)
      .replace(/[\u0000-\u0008\u000b-\u001f]/g, (sign) =>
        String.fromCharCode(0x2400 + sign.charCodeAt(0)),
      )
      .replace(/[\u007f\u0080-\u009f\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]/g, "␦");

  mage.Text = ({text, kind = ""}) => {
    const [all, setAll] = useState(false);
    const clean = mage.clean(text);
    if (!clean) return html`<span class="quiet">empty</span>`;
    const shown = all ? clean : clean.slice(0, LONG);
    return html`<pre class="text ${kind}">${shown}</pre>
      ${
        shown.length < clean.length &&
        html`<button class="small" onClick=${() => setAll(true)}>
        Show all ${clean.length.toLocaleString("en")} characters</button>`
      }`;
  };

  mage.Cells = ({outcomes, scores}) => html`<span class="cells" role="img"
      aria-label=${[...outcomes].map((one) => mage.outcome[one]).join(", ")}
      >${[...outcomes].map(
        (one, k) => html`<i class=${`cell ${mage.outcome[one]}`}
        title=${`Episode ${k + 1}: ${mage.outcome[one]}${scores ? `, score ${mage.score(scores[k], 1)}` : ""}`}></i>`,
      )}</span>`;

  mage.State = ({state}) => html`<span class=${`state ${state}`}>${state}</span>`;
  mage.Loading = ({error}) =>
    error
      ? html`<p class="problem" role="alert">${error.message}</p>`
      : html`<p class="quiet loading">Loading …</p>`;
  mage.setName = (name) => {
    const step = /^step_(\d+)$/.exec(name);
    if (step) return `training, update ${Number(step[1])}`;
    const stages = {after: "after training", before: "before training", emptied: "without memory"};
    const [stage, ...split] = name.split("_");
    return stages[stage] ? `${mage.splitName(split.join(" "))} panel, ${stages[stage]}` : name;
  };
  mage.capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
  mage.link = (...parts) => `#/${parts.map(encodeURIComponent).join("/")}`;
})();
