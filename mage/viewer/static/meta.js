// One meta-episode: a column an episode, with memory, moves, replies, reflections and credit.
"use strict";
(function () {
  const {html, useState, useEffect} = htmPreact;

  const probabilityColour = (value) =>
    value === null
      ? "transparent"
      : `color-mix(in srgb, var(--lost) ${Math.round(70 * (1 - value))}%, transparent)`;

  function Reply({turn}) {
    if (!turn.tokens || !turn.tokens.length)
      return html`<${mage.Text} text=${turn.text} kind="reply" />`;
    return html`<pre class="text reply">${turn.tokens.slice(0, 4000).map(
      ([text, value]) => html`<span class="token"
      style=${`background:${probabilityColour(value)}`}
        title=${`probability ${value === null ? "unknown" : mage.percent(value, 2)}`}>${mage.clean(text)}</span>`,
    )}</pre>`;
  }

  const ENDINGS = {illegal: "illegal replies", turn_limit: "the turn limit", error: "an error"};
  const SHOWN = 6; // legal moves that are visible at first

  // All legal moves of a turn with their stored probabilities; the played move is marked.
  function Chances({turn}) {
    const {moves, count, legal} = turn.chances;
    const [all, setAll] = useState(false);
    const own = moves.findIndex(([move]) => turn.legal && move === turn.action);
    const shown = moves.filter((_, k) => all || k < SHOWN || k === own);
    const bar = (chance) => `width:${Math.max(0.5, 100 * chance)}%`;
    return html`<div class="chances" role="list" aria-label="Probabilities of the legal moves">
      ${shown.map(
        ([move, chance]) => html`<div role="listitem" class=${move === turn.action ? "own" : ""}>
        <span class="move" title=${mage.clean(move)}>${mage.clean(move)}</span>
        <span class="track"><i style=${bar(chance)}></i></span>
        <span class="chance">${mage.percent(chance, 1)}</span></div>`,
      )}
      ${
        shown.length < moves.length &&
        html`<button class="small" onClick=${() => setAll(true)}>
          ${moves.length - shown.length} more of ${count} legal moves</button>`
      }
      ${
        legal < 0.995 &&
        html`<div class="none"><span class="move">no legal move</span>
          <span class="track"><i style=${bar(1 - legal)}></i></span>
          <span class="chance">${mage.percent(1 - legal, 1)}</span></div>`
      }</div>`;
  }

  // Without stored probabilities: the sampled token among the tokens of legal moves.
  const Choices = ({choices}) =>
    choices &&
    choices.map(
      (one) => html`<div class="choices" title="The place of the reply where legal moves differ">
    <span class="track"><i style=${`width:${100 * (one.probability || 0)}%`}></i></span>
    <span><b>${mage.clean(one.chosen)}</b> ${mage.percent(one.probability, 1)}, of ${one.options
      .map((text) => mage.clean(text).trim())
      .slice(0, 12)
      .join(" / ")}</span></div>`,
    );

  // Values of the compared members on a line; the own value is filled, the mean is a bar.
  function Dots({part, here}) {
    const values = [
      ...part.turns.map((one) => one.value),
      part.own,
      ...(part.mean === null ? [] : [part.mean]),
    ];
    const [low, high] = [Math.min(...values), Math.max(...values)];
    const x = (value) => 12 + (high > low ? (256 * (value - low)) / (high - low) : 128);
    const stacks = {};
    return html`<svg class="dots" viewBox="0 0 280 64" width="280" height="64" role="img"
        aria-label=${`${part.part} part: own value ${mage.score(part.own, 2)}, mean of the others ${mage.score(part.mean, 2)}`}>
      <line x1="8" x2="272" y1="44" y2="44" class="axis" />
      ${part.mean !== null && html`<line x1=${x(part.mean)} x2=${x(part.mean)} y1="8" y2="50"
        class="mean" />`}
      ${part.turns.map((one) => {
        const place = Math.round(x(one.value));
        stacks[place] = (stacks[place] || 0) + 1;
        const own =
          part.part === "step" ? one.place.join() === here.join() : one.place[0] === here[0];
        return html`<circle cx=${place} cy=${44 - 6 * Math.min(6, stacks[place]) + 3} r="3.4"
          class=${own ? "own" : "other"}><title>member ${one.member}: ${mage.score(one.value, 2)}
          </title></circle>`;
      })}
      <text x="8" y="60" class="caption">${mage.score(low, 2)}</text><text x="272" y="60"
        class="caption end">${mage.score(high, 2)}</text></svg>`;
  }

  function Why({id, name, credit}) {
    return html`<div class="why"><p>${credit.sentences.map((one, k) => html`${k > 0 && " "}<span
      class=${k ? "" : "lead"}>${one}</span>`)}</p>
      ${credit.compared.map(
        (
          part,
        ) => html`<div class="part">
          <b>${part.part.replace("_", " ")} part ${mage.score(credit.parts[part.part], 2)}</b>
        <${Dots} part=${part} here=${credit.place} />
        <details><summary>${part.turns.length} compared turns</summary><ul>${part.turns.map(
          (one) => html`<li>
          <a href=${`${mage.link("run", id, "meta", name, one.place[0])}?turn=${one.place[1]}.${one.place[2]}`}>member ${one.member}, episode ${one.place[1] + 1}</a>
          ${" "}${mage.score(one.value, 2)}</li>`,
        )}</ul></details></div>`,
      )}
      <p class="quiet">Reward of the episode ${mage.score(credit.reward, 1)}, return of the turn ${mage.score(credit.return, 2)}, return of the episode ${mage.score(credit.episode_return, 2)}.</p></div>`;
  }

  function Turn(props) {
    const {id, name, meta, turn, credit, episode, number, index, focus, title} = props;
    const [why, setWhy] = useState(focus);
    const [prompt, setPrompt] = useState(null);
    const board =
      turn.kind === "play" &&
      mage.board(meta.task.environment, {
        turn,
        episode,
        first: episode.turns[0],
        seat: meta.task.seat,
      });
    const loadPrompt = async () => {
      if (prompt) return setPrompt(null);
      try {
        const found = (await mage.load(`run/${id}/prompts/${name}/${meta.number}`)).episodes[
          number
        ];
        setPrompt(index < 0 ? found.reflection : found.turns[index]);
      } catch (error) {
        setPrompt(error.message);
      }
      return undefined;
    };
    return html`<div
      class=${`turn ${turn.kind} ${turn.legal || turn.kind === "reflect" ? "" : "illegal"} ${focus ? "focus" : ""}`} id=${`turn-${number}-${index}`}>
      ${title && html`<h3>${title}</h3>`}
      ${board}
      ${turn.kind === "play" && html`<details open=${!board}><summary>state</summary><${mage.Text}
        text=${turn.observation} /></details>`}
      ${turn.calls.map(
        (call) => html`<div class="call"><${Reply} turn=${call} />
          <div class=${`result ${call.failed ? "failed" : ""}`}><span
            class="quiet">${call.failed ? "error" : "result"}</span><${mage.Text} text=${call.result} /></div></div>`,
      )}
      <${Reply} turn=${turn} />
      ${turn.chances ? html`<${Chances} turn=${turn} />` : html`<${Choices} choices=${turn.choices} />`}
      <div class="badges">
        ${turn.kind === "play" && html`<span
          class=${`badge ${turn.legal ? "" : "bad"}`}>${turn.action === null ? "no action found" : `${turn.legal ? "" : "illegal: "}${mage.clean(turn.action).slice(0, 80)}`}</span>`}
        ${turn.finish === "length" && html`<span class="badge bad">cut off</span>`}
        ${turn.penalty < 0 && html`<span class="badge bad">penalty ${mage.score(turn.penalty, 2)}
          </span>`}
        ${
          credit &&
          html`<button
            class=${`badge credit ${credit.advantage >= 0.005 ? "plus" : credit.advantage <= -0.005 ? "minus" : ""}`} aria-expanded=${Boolean(why)}
          onClick=${() => setWhy(!why)}>advantage ${mage.score(credit.advantage, 2)} · why?</button>`
        }
        <button class="badge" aria-expanded=${prompt !== null}
          onClick=${loadPrompt}>prompt, ${turn.prompt_tokens} tokens</button>
      </div>
      ${why && credit && html`<${Why} id=${id} name=${name} credit=${credit} />`}
      ${prompt !== null && html`<${mage.Text} text=${prompt} kind="block" />`}
    </div>`;
  }

  // The turns of the agent in order among the moves of all seats.
  function inOrder(episode, seat) {
    const found = [];
    let next = 0;
    episode.moves.forEach((move) => {
      if (move.seat !== seat) return found.push({opponent: move.action});
      while (next < episode.turns.length) {
        found.push({turn: episode.turns[next], index: next});
        if (episode.turns[next++].legal) break;
      }
      return undefined;
    });
    for (; next < episode.turns.length; next++)
      found.push({turn: episode.turns[next], index: next});
    return found;
  }

  function Column({id, name, meta, number, credits, focus}) {
    const episode = meta.episodes[number];
    const after = meta.episodes[number + 1];
    const one = (
      turn,
      index,
      of,
      title,
    ) => html`<${Turn} id=${id} name=${name} meta=${meta} turn=${turn} episode=${meta.episodes[of]}
      number=${of} index=${index} title=${title}
      credit=${credits[`${meta.number},${of},${index}`]} focus=${focus === `${of}.${index}`}
        key=${`${meta.number}.${of}.${index}`} />`;
    return html`<section class="column" aria-label=${`Episode ${number + 1}`}>
      <header class=${episode.outcome}><h2>Episode ${number + 1}</h2><b>${episode.outcome}</b>
        <span>score ${mage.score(episode.score, 2)}, reward ${mage.score(episode.reward, 1)}${episode.ending !== "finished" ? `, ended by ${ENDINGS[episode.ending] || episode.ending}` : ""}</span></header>
      <details class="memory" open=${meta.memories[number] && meta.memories[number].length < 900}>
        <summary>Memory shown</summary><${mage.Text} text=${meta.memories[number]} /></details>
      ${mage.drawsHands(meta.task.environment) && html`<${mage.Hands} episode=${episode}
        seat=${meta.task.seat} />`}
      ${inOrder(episode, meta.task.seat).map((step) => (step.turn ? one(step.turn, step.index, number, "") : html`<div class="opponent"><span>opponent</span> <b>${mage.clean(step.opponent)}</b></div>`))}
      <div class="recap"><${mage.Text} text=${episode.recap} /></div>
      ${after && after.reflection && one(after.reflection, -1, number + 1, "Reflection after this episode")}</section>`;
  }

  function useCredit(id, name, meta) {
    const [credits, setCredits] = useState({});
    useEffect(() => {
      let active = true;
      setCredits({});
      if (meta && name.startsWith("step_"))
        mage
          .load(`run/${id}/credit/${name}/${meta.group}`)
          .then(
            (found) =>
              active &&
              setCredits(Object.fromEntries(found.turns.map((one) => [one.place.join(), one]))),
          )
          .catch(() => undefined);
      return () => {
        active = false;
      };
    }, [id, name, meta && meta.number]);
    return credits;
  }

  mage.MetaBody = ({id, name, number, focus}) => {
    const {value: meta, error} = mage.useData(`run/${id}/meta/${name}/${number}`);
    const credits = useCredit(id, name, meta);
    useEffect(() => {
      const place = focus && document.getElementById(`turn-${focus.replace(".", "-")}`);
      if (place) place.scrollIntoView({block: "center"});
    }, [meta, focus]);
    if (!meta) return html`<${mage.Loading} error=${error} />`;
    const {task} = meta;
    return html`<p
      class="quiet">${task.environment}${task.opponent && ` against ${mage.clean(task.opponent)}, ${mage.seat(task.seat)} seat`} · task ${String(task.seed)} · group ${meta.group}, member ${meta.member} · policy of update ${meta.policy_version}</p>
      <div class="columns">${meta.episodes.map((_, k) => html`<${Column} key=${k} id=${id}
        name=${name} meta=${meta} number=${k} credits=${credits} focus=${focus} />`)}</div>`;
  };

  mage.MetaView = ({id, name, number, query}) => {
    const {value: meta} = mage.useData(`run/${id}/meta/${name}/${number}`);
    const at = (k) => mage.link("run", id, "meta", name, k);
    const last = meta ? meta.count - 1 : number;
    mage.useKeys({
      ArrowLeft: () => number > 0 && (location.hash = at(number - 1)),
      ArrowRight: () => number < last && (location.hash = at(number + 1)),
      Escape: () => (location.hash = mage.link("run", id, "episodes")),
    });
    return html`<div class="bar"><h1>${mage.capital(mage.setName(name))} <small
      class="quiet">#${number}</small></h1>
      <a class=${`button ${number > 0 ? "" : "off"}`}
        href=${number > 0 ? at(number - 1) : undefined}>← previous</a>
      <a class=${`button ${number < last ? "" : "off"}`}
        href=${number < last ? at(number + 1) : undefined}>next →</a>
      <a class="button" href=${mage.link("run", id, "episodes")}>all meta-episodes</a></div>
      <${mage.MetaBody} id=${id} name=${name} number=${number} focus=${query.turn} />`;
  };
})();
