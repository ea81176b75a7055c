// The tree of one verify step: what was drafted, whose nodes they are, and the path that was accepted.
import { Component, html, useEffect, useState } from "./vendor/htm-preact.js";
import { KEPT_STEPS } from "./answer.js";
import { classOf, visible } from "./colours.js";
import { layOut, ROW } from "./tree_layout.js";

const LONGEST = 13;
const shorten = (text) => (text.length > LONGEST ? `${text.slice(0, LONGEST - 1)}…` : text);
const radius = (node) => (node.probability === null || node.probability === undefined ? 5 : 3 + 5 * Math.sqrt(node.probability));
const link = ({ from, to }) => `M${from.x},${from.y}C${(from.x + to.x) / 2},${from.y} ${(from.x + to.x) / 2},${to.y} ${to.x},${to.y}`;

function words(node) {
  if (node.kind === "root") return "the last token before the step";
  if (node.kind === "own") return `${visible(node.text)}: the target's own token`;
  const said = node.text === null ? "withheld, as it may be another request's" : visible(node.text);
  const likely = node.probability === null ? "" : `, path probability ${node.probability.toFixed(3)}`;
  return `${said}: drafted by ${node.proposer}${likely}, ${node.accepted ? "accepted" : "rejected"}`;
}

const sentence = (step) => {
  const drafted = step.tree ? step.tree.token_ids.length : 0;
  const right = step.tree ? step.tree.accepted.length : 0;
  const what = drafted ? `${right} of ${drafted} drafted tokens accepted` : "nothing was drafted";
  return `Step ${step.number}: ${what}, ${step.tokens.length} ${step.tokens.length === 1 ? "token" : "tokens"} out`;
};

class Drawing extends Component {
  shouldComponentUpdate(next) {
    return next.step !== this.props.step;
  }

  render({ step }) {
    const { width, height, nodes, links } = layOut(step);
    return html`<svg class="tree" role="img" aria-label=${sentence(step)} width=${width} height=${height}
      viewBox=${`-12 ${-ROW / 2} ${width} ${height}`}>
      ${links.map((each) => html`<path class=${each.accepted ? "link accepted" : "link"} d=${link(each)} />`)}
      ${nodes.map(
        (node) => html`<g class=${`node ${node.kind} ${node.accepted ? "accepted" : "rejected"} ${node.proposer ? classOf(node.proposer) : ""}`}
          transform=${`translate(${node.x},${node.y})`}>
          <title>${words(node)}</title>
          ${node.kind === "own" ? html`<rect x="-5" y="-5" width="10" height="10" />` : html`<circle r=${radius(node)} />`}
          <text x="11" dy="0.32em">${node.text === null ? "▒▒▒" : shorten(visible(node.text))}</text>
        </g>`,
      )}
    </svg>`;
  }
}

// The newest step, and of a complete answer the last one that drafted anything.
function newest({ steps, finish }) {
  const drafted = finish ? steps.findLastIndex((step) => step.tree) : -1;
  return drafted < 0 ? steps.length : drafted + 1;
}

// Follows the newest step until one is chosen. `onChoose(number)` takes the chosen step, null for the newest.
export function TreeView({ answer, chosen, onChoose }) {
  const steps = answer ? answer.steps : [];
  const last = steps.length;
  const first = Math.max(1, last - KEPT_STEPS + 1);
  const number = chosen === null ? (answer ? newest(answer) : 0) : Math.min(Math.max(chosen, first), last);
  const step = steps[number - 1];
  const [playing, setPlaying] = useState(false);
  useEffect(() => {
    if (!playing) return undefined;
    if (number >= last) {
      setPlaying(false);
      return undefined;
    }
    const timer = setTimeout(() => onChoose(number + 1), 250);
    return () => clearTimeout(timer);
  }, [playing, number, last]);
  return html`<section class="panel tree-panel" aria-label="Tree of a verify step">
    <header>
      <h2>Tree of the step</h2>
      <output class="sentence">${step ? sentence(step) : "Ask something: each verify step draws its tree here."}</output>
    </header>
    <div class="drawing" tabindex="0">${step && html`<${Drawing} step=${step} />`}</div>
    <div class="scrub">
      <button type="button" disabled=${!step} onClick=${() => { if (number >= last) onChoose(first); setPlaying(!playing); }}>
        ${playing ? "Pause" : "Play"}
      </button>
      <input type="range" aria-label="Step" min=${first} max=${Math.max(first, last)} value=${number} disabled=${!step} aria-valuetext=${step ? sentence(step) : ""}
        onInput=${(event) => { setPlaying(false); onChoose(Number(event.target.value)); }} />
      <button type="button" class=${chosen === null ? "live on" : "live"} aria-pressed=${chosen === null} disabled=${!step}
        onClick=${() => { setPlaying(false); onChoose(null); }}>Live</button>
    </div>
  </section>`;
}
