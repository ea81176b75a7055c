// An answer's text, every token coloured by how it came. Texts are text nodes, never HTML.
import { Component, html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { classOf, visible } from "./colours.js";

const ORIGINS = {
  target: "the target's own (plain step)",
  draft: "accepted draft",
  bonus: "the target's own, behind the drafts",
  unknown: "not traced",
};

// What is known of a token, in words.
export function describe(token) {
  const parts = [`${visible(token.text)}`, ORIGINS[token.origin] + (token.proposer ? ` by ${token.proposer}` : "")];
  parts.push(`step ${token.step}`, `token ${token.position + 1}`);
  if (token.probability !== null) parts.push(`path probability ${token.probability.toFixed(3)}`);
  if (token.logprob !== null) parts.push(`log probability ${token.logprob.toFixed(3)}`);
  return parts.join(" · ");
}

// The tokens of one step, which do not change once they are there.
class StepTokens extends Component {
  shouldComponentUpdate(next) {
    return next.step !== this.props.step || next.chosen !== this.props.chosen || next.here !== this.props.here;
  }

  render({ step, chosen, here }) {
    return html`<span class=${chosen ? "step chosen" : "step"} data-step=${step.number}>${step.tokens.map(
      (token, at) =>
        html`<span class=${`token ${token.origin} ${token.proposer ? classOf(token.proposer) : ""}${here === at ? " here" : ""}`} data-at=${at}>${token.text}</span>`,
    )}</span>`;
  }
}

const ARROWS = { ArrowRight: 1, ArrowLeft: -1 };

// `onPick(step)` is called as a token is clicked, `onPoint(words)` as one is pointed at. By keyboard arrows point, Enter picks.
export function TokenText({ answer, chosen, onPick, onPoint }) {
  const place = useRef(null);
  const [here, setHere] = useState(null); // the index of the token that the keyboard points at
  useEffect(() => {
    const shown = here === null ? null : place.current.querySelector(".here");
    if (shown) shown.scrollIntoView({ block: "nearest" });
  }, [here]);
  const onKeyDown = (event) => {
    const tokens = answer.steps.flatMap((step) => step.tokens);
    const by = ARROWS[event.key];
    if (by && tokens.length) {
      event.preventDefault();
      const next = here === null ? (by > 0 ? 0 : tokens.length - 1) : Math.min(Math.max(here + by, 0), tokens.length - 1);
      setHere(next);
      if (onPoint) onPoint(describe(tokens[next]));
    } else if (event.key === "Enter" && tokens[here] && onPick) onPick(answer.steps[tokens[here].step - 1]);
  };
  const tokenAt = (event) => {
    const [shown, group] = [event.target.closest(".token"), event.target.closest(".step")];
    const step = group && answer.steps[Number(group.dataset.step) - 1];
    return step && shown ? { step, token: step.tokens[Number(shown.dataset.at)] } : null;
  };
  const point = (event) => {
    const found = tokenAt(event);
    if (found && onPoint) onPoint(describe(found.token));
  };
  const pick = (event) => {
    const found = tokenAt(event);
    if (found && onPick) onPick(found.step);
  };
  let before = 0;
  return html`<span class="tokens" ref=${place} tabindex="0" role="group" aria-label="Tokens: the arrow keys tell of one after the other"
    onKeyDown=${onKeyDown} onBlur=${() => setHere(null)} onMouseOver=${point} onClick=${pick}>${answer.steps.map((step) => {
      const at = here === null ? -1 : here - before;
      before += step.tokens.length;
      return html`<${StepTokens} key=${step.number} step=${step} chosen=${chosen === step.number} here=${at >= 0 && at < step.tokens.length ? at : null} />`;
    })}</span>`;
}

// Which colour stands for whom.
export function Legend({ proposers }) {
  return html`<ul class="legend" aria-label="Colours of tokens">
    <li><span class="token target">plain</span></li>
    <li><span class="token bonus">bonus</span></li>
    ${proposers.map((name) => html`<li key=${name}><span class=${`token draft ${classOf(name)}`}>${name}</span></li>`)}
  </ul>`;
}
