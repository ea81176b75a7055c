// The race: one prompt and one seed, with speculation and without, side by side. The tokens are the same.
import { html, useRef, useState } from "./vendor/htm-preact.js";
import { agreement } from "./answer.js";
import { generate } from "./generate.js";
import { PROMPTS } from "./prompts.js";
import { requestBody } from "./settings.js";
import { TokenText } from "./token_text.js";
import { useFollow } from "./use_follow.js";

const TALLY = { done: 0, identical: 0, same: 0, tokens: 0 };
const seedOf = (settings) => (settings.seed === "" ? Math.floor(Math.random() * 2 ** 31) : Number(settings.seed));

function Column({ title, answer, running, chosen, onPick, onPoint, drafts }) {
  const alone = drafts && answer && answer.alone;
  const [text, onScroll] = useFollow(answer ? answer.count : 0, answer);
  const state = !answer ? "\u00a0" : !drafts ? "One token a step." : alone ? "No drafts come: the target goes on alone." : "Drafts come.";
  return html`<section class="column" aria-label=${title}>
    <h3>${title}</h3>
    <p class="figures">${answer && answer.steps.length
      ? `${answer.count} tokens · ${answer.steps.length} steps · ${answer.acceptanceLength.toFixed(2)} a step · ${answer.tokensPerSecond.toFixed(0)} tokens/s`
      : "\u00a0"}</p>
    <p class=${alone ? "state alone" : "state"}>${state}</p>
    <div class="text" tabindex="0" ref=${text} onScroll=${onScroll} aria-busy=${!!running}>${answer && html`<${TokenText} answer=${answer} chosen=${chosen} onPick=${onPick} onPoint=${onPoint} />`}</div>
  </section>`;
}

export function RaceView({ settings, model, onShow, shown, chosen, onPick, say }) {
  const [prompt, setPrompt] = useState(PROMPTS[0]);
  const [lanes, setLanes] = useState({ on: null, off: null });
  const [tally, setTally] = useState(TALLY);
  const [pointed, setPointed] = useState("");
  const [error, setError] = useState("");
  const running = useRef(null);
  const [, redraw] = useState(0);

  // Runs both lanes at the same time; resolves to their agreement.
  const race = async (question, stop) => {
    const answers = { on: null, off: null };
    setLanes(answers);
    onPick(null);
    const base = requestBody({ ...settings, seed: seedOf(settings) }, model.id, [{ role: "user", content: question }]);
    const lane = (name, speculation) =>
      generate({ ...base, speculation }, {
        signal: stop.signal,
        onNotice: setError,
        onStep: (answer) => {
          answers[name] = answer;
          if (name === "on") onShow("race", answer);
          setLanes({ ...answers });
        },
      });
    const [on, off] = await Promise.all([lane("on", { ...base.speculation, enabled: true }), lane("off", { enabled: false })]);
    return { ...agreement(on, off), whole: on.count === off.count && on.finish === off.finish };
  };

  const run = async (questions) => {
    if (running.current || !model) return;
    const stop = new AbortController();
    running.current = stop;
    setError("");
    let told = TALLY;
    setTally(told);
    try {
      for (const question of questions) {
        setPrompt(question);
        const { same, both, whole } = await race(question, stop);
        if (stop.signal.aborted) break;
        told = { done: told.done + 1, identical: told.identical + (whole && same === both), same: told.same + same, tokens: told.tokens + both };
        setTally(told);
      }
      say(`The race is over: ${told.identical} of ${told.done} answers identical`);
    } catch (failed) {
      stop.abort();
      setError(failed.message);
    }
    running.current = null;
    redraw((count) => count + 1);
  };

  const busy = !!running.current;
  const { same, both } = lanes.on && lanes.off ? agreement(lanes.on, lanes.off) : { same: 0, both: 0 };
  const ended = lanes.on && lanes.off && lanes.on.finish && lanes.off.finish;
  const seconds = (answer) => answer.steps[answer.steps.length - 1].at;
  return html`<section class="panel race" aria-label="Race">
    <form class="ask" onSubmit=${(event) => { event.preventDefault(); run([prompt]); }}>
      <label class="hidden" for="race-prompt">Prompt of the race</label>
      <textarea id="race-prompt" rows="2" value=${prompt} onInput=${(event) => setPrompt(event.target.value)} />
      ${busy
        ? html`<button type="button" class="stop" onClick=${() => running.current && running.current.abort()}>Stop</button>`
        : html`<button type="submit" disabled=${!model}>Race</button>
            <button type="button" class="all" disabled=${!model} onClick=${() => run(PROMPTS)}>Race ${PROMPTS.length} prompts</button>`}
    </form>
    <p class=${same === both ? "verdict" : "verdict differs"} role="status">
      <b>Identical so far: ${same} of ${both}</b>
      ${ended && lanes.on.steps.length > 0 && lanes.off.steps.length > 0
        ? ` · ${lanes.off.steps.length} steps without, ${lanes.on.steps.length} with speculation · done after ${seconds(lanes.off).toFixed(2)} s and ${seconds(lanes.on).toFixed(2)} s`
        : ""}
      ${tally.done > 0 && html`<span class="tally"> · ${tally.identical} of ${tally.done} answers identical (${tally.same} of ${tally.tokens} tokens)</span>`}
    </p>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <div class="columns">
      <${Column} title="With speculation" drafts=${true} answer=${lanes.on} running=${busy} chosen=${shown === lanes.on ? chosen : null}
        onPick=${(step) => { onShow("race", lanes.on); onPick(step.number); }} onPoint=${setPointed} />
      <${Column} title="Without" answer=${lanes.off} running=${busy} chosen=${shown === lanes.off ? chosen : null}
        onPick=${(step) => { onShow("race", lanes.off); onPick(step.number); }} onPoint=${setPointed} />
    </div>
    <output class="pointed">${pointed || "\u00a0"}</output>
  </section>`;
}
