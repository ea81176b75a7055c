// An answer's text, every token coloured by how it came. Texts are text nodes, never HTML.
import { Component, html } from "./vendor/htm-preact.js";
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
    return next.step !== this.props.step || next.chosen !== this.props.chosen;
  }

  render({ step, chosen }) {
    return html`<span class=${chosen ? "step chosen" : "step"} data-step=${step.number}>${step.tokens.map(
      (token, at) =>
        html`<span class=${`token ${token.origin} ${token.proposer ? classOf(token.proposer) : ""}`} data-at=${at}>${token.text}</span>`,
    )}</span>`;
  }
}

// `onPick(step)` is called as a token is clicked, `onPoint(words)` as one is pointed at.
export function TokenText({ answer, chosen, onPick, onPoint }) {
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
  return html`<span class="tokens" onMouseOver=${point} onClick=${pick}>${answer.steps.map(
    (step) => html`<${StepTokens} key=${step.number} step=${step} chosen=${chosen === step.number} />`,
  )}</span>`;
}

// Which colour stands for whom.
export function Legend({ proposers }) {
  return html`<ul class="legend" aria-label="Colours of tokens">
    <li><span class="token target">plain</span></li>
    <li><span class="token bonus">bonus</span></li>
    ${proposers.map((name) => html`<li key=${name}><span class=${`token draft ${classOf(name)}`}>${name}</span></li>`)}
  </ul>`;
}
