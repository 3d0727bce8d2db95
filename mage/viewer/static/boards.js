// Pictures of game states: boards, cards, rooms, hands and shop pages.
"use strict";
(function () {
  const {html} = htmPreact;

  function ticTacToe({turn}) {
    const cells = [...turn.anchor];
    if (cells.length !== 9) return null;
    const place = /^\((\d),(\d)\)$/.exec(turn.action || ""); // of the published prompts
    const cell = place ? 3 * Number(place[1]) + Number(place[2]) - 3 : Number(turn.action);
    const move = turn.legal ? cell - 1 : -1;
    const free = cells.filter((one) => one === ".").length;
    const mark = free % 2 ? "X" : "O";
    return html`<svg class="board" viewBox="0 0 96 96" width="96" height="96" role="img"
      aria-label=${`board ${turn.anchor}, move ${turn.action}`}>
      ${cells.map((cell, k) => {
        const [x, y] = [(k % 3) * 32, Math.floor(k / 3) * 32];
        const shown = k === move ? mark : cell;
        return html`<rect x=${x + 1} y=${y + 1} width="30" height="30" rx="4"
          class=${k === move ? "square new" : "square"} />
          ${shown === "X" && html`<path d=${`M${x + 9} ${y + 9}l14 14m0 -14l-14 14`}
            class="mark x" />`}
          ${shown === "O" && html`<circle cx=${x + 16} cy=${y + 16} r="8" class="mark o" />`}
          ${shown === "." && html`<text x=${x + 16} y=${y + 20} class="digit">${k + 1}</text>`}`;
      })}</svg>`;
  }

  const card = (
    x,
    text,
    hidden,
  ) => html`<rect x=${x} y="4" width="34" height="48" rx="5"
    class=${hidden ? "card back" : "card"} />
    <text x=${x + 17} y="37" class=${hidden ? "face hidden" : "face"}>${hidden ? "?" : text}
      </text>`;

  function kuhn({turn, episode}) {
    const [own, ...moves] = turn.anchor.split(" ");
    const shown = /Opponent's card: (\w)\b/.exec(episode.recap);
    const bets =
      moves.filter((move) => move === "bet").length +
      (turn.legal && turn.action.toLowerCase() === "bet" ? 1 : 0);
    return html`<svg class="board" viewBox="0 0 190 58" width="190" height="58" role="img"
      aria-label=${`own card ${own}, moves ${moves.join(" ") || "none"}`}>
      ${card(2, own, false)}${card(44, shown ? shown[1] : "", !shown)}
      ${[...Array(2 + bets).keys()].map((k) => html`<ellipse cx=${100 + (k % 3) * 22}
        cy=${42 - Math.floor(k / 3) * 12} rx="10" ry="6" class="chip" />`)}
      <text x="90" y="16" class="caption">pot ${2 + bets} chips</text></svg>`;
  }

  const SQUARES = {
    "#": "wall",
    _: "floor",
    O: "target",
    X: "box",
    "*": "box done",
    P: "player",
    S: "player target",
  };

  function sokoban({turn}) {
    const rows = turn.anchor.split("\n");
    const wide = Math.max(...rows.map((row) => row.length));
    if (rows.length < 3 || rows.length * wide > 900) return null;
    const size = 16;
    return html`<svg class="board" viewBox=${`0 0 ${wide * size} ${rows.length * size}`}
      width=${wide * size} height=${rows.length * size} role="img" aria-label="Sokoban room">
      ${rows.flatMap((row, y) =>
        [...row].map((sign, x) => {
          const kind = SQUARES[sign] || "floor";
          const [left, top] = [x * size, y * size];
          return html`<rect x=${left} y=${top} width=${size} height=${size}
            class=${sign === "#" ? "wall" : "floor"} />
          ${"OS*".includes(sign) && html`<circle cx=${left + 8} cy=${top + 8} r="3.5"
            class="target" />`}
          ${kind.startsWith("box") && html`<rect x=${left + 2.5} y=${top + 2.5} width="11"
            height="11" rx="2" class=${kind} />`}
          ${kind.startsWith("player") && html`<circle cx=${left + 8} cy=${top + 8} r="5"
            class="player" />`}`;
        }),
      )}</svg>`;
  }

  // Drawn, because not every machine has a font with hand signs.
  const THROWS = {
    rock: html`<circle cx="13" cy="14" r="8" class="rock" />`,
    paper: html`<rect x="6" y="4" width="14" height="18" rx="1.5" class="paper" />
      <path d="M9 9h8m-8 4h8m-8 4h5" class="lines" />`,
    scissors: html`<path d="M8 3l7 13m3 -13l-7 13" class="blades" />
      <circle cx="8.5" cy="19" r="3" class="grip" /><circle cx="17.5" cy="19" r="3"
        class="grip" />`,
  };
  const BEATS = {rock: "scissors", scissors: "paper", paper: "rock"};
  const Throw = ({name}) =>
    THROWS[name]
      ? html`<svg class="throw" viewBox="0 0 26 26" width="26" height="26">${THROWS[name]}</svg>`
      : html`<small>${mage.clean(name)}</small>`;

  function hands({episode, seat}) {
    const own = episode.moves.filter((move) => move.seat === seat);
    const other = episode.moves.filter((move) => move.seat !== seat);
    const result = (a, b) =>
      BEATS[a] === b ? "won" : BEATS[b] === a ? "lost" : a === b ? "drawn" : "";
    return html`<div class="hands" role="img"
      aria-label="throws of the agent (above) and of the opponent">${own.map((move, k) => {
        const against = other[k] ? other[k].action : "";
        return html`<span class=${result(move.action, against)}
          title=${`${mage.clean(move.action)} against ${mage.clean(against)}`}>
          <${Throw} name=${move.action} /><${Throw} name=${against} /></span>`;
      })}</div>`;
  }

  const MANY = 4; // places of one kind that are shown as one

  // Places by kind: "cabinet 1" and "cabinet 2" are two places, 27 cabinets are one entry.
  function groupPlaces(spots, here) {
    const kinds = new Map();
    for (const spot of [...new Set(spots)].sort()) {
      const kind = spot.replace(/ \d+$/, "");
      kinds.set(kind, [...(kinds.get(kind) || []), spot]);
    }
    return [...kinds].flatMap(([kind, own]) =>
      own.length < MANY
        ? own.map((spot) => ({text: spot, here: spot === here}))
        : [
            {text: `${own.length} × ${kind}`, title: own.join(", ")},
            ...own.filter((spot) => spot === here).map((spot) => ({text: spot, here: true})),
          ],
    );
  }

  function rooms({turn, first}) {
    const place = /; at ([^;]+)/.exec(turn.anchor);
    const holds = /; holds ([^;]+)/.exec(turn.anchor);
    const seen = /you see (.+?)\.\s*(\n|$)/.exec(first ? first.observation : "");
    if (!place) return null;
    const here = place[1].trim();
    const spots = seen
      ? seen[1]
          .split(/,\s*(?:and )?|\s+and\s+/)
          .map((one) => one.replace(/^an? /, "").trim())
          .filter(Boolean)
      : [here];
    return html`<div class="rooms" role="img" aria-label=${`at ${here}`}>${groupPlaces(
      spots,
      here,
    ).map(
      (one) => html`<span class=${one.here ? "here" : ""} title=${mage.clean(one.title || "")}>
      ${mage.clean(one.text)}</span>`,
    )}
      <small>${holds && !holds[1].startsWith("nothing") ? `carries ${mage.clean(holds[1])}` : "carries nothing"}</small></div>`;
  }

  const BUTTON =
    /^(Search|Back to Search|Next >|< Prev|Description|Features|Reviews|Attributes|Buy Now|B0[0-9A-Z]{8})$/;

  function shop({turn}) {
    const lines = mage
      .clean(turn.observation)
      .split(/\n| \[SEP\] /)
      .map((line) => line.replace(/^'(.*)'$/, "$1")); // items of the published prompts
    if (lines.length < 2) return null;
    const clicked = /^click\[(.*)\]$/i.exec(turn.action || "");
    return html`<div class="shop">${lines.map((line) => {
      const button = /^\[button\] (.*) \[button_\]$/.exec(line.trim()) || BUTTON.exec(line.trim());
      if (!button)
        return (
          line.trim() && html`<p class=${/^\$[\d.]/.test(line.trim()) ? "price" : ""}>${line}</p>`
        );
      const on = clicked && clicked[1].toLowerCase() === button[1].toLowerCase();
      return html`<span class=${`pill ${on ? "on" : ""}`}>${button[1]}</span>`;
    })}</div>`;
  }

  const BOARDS = {
    tic_tac_toe: ticTacToe,
    kuhn_poker: kuhn,
    sokoban,
    alfworld: rooms,
    webshop: shop,
  };
  mage.drawsHands = (environment) => /rock_?paper_?scissors|rps/.test(environment);
  mage.Hands = hands;

  // The picture of a turn, or null where the environment has none or the state cannot be read.
  mage.board = (environment, parts) => {
    const draw = BOARDS[environment];
    try {
      return draw ? draw(parts) : null;
    } catch (error) {
      return null;
    }
  };
})();
