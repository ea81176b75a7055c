// One answer as its verify steps came.
export const KEPT_STEPS = 200; // trees that can be looked at

const token = (step, at, told, logprobs, tree) => {
  const node = told.origin === "draft" && tree ? tree.accepted[at] : undefined;
  const known = node !== undefined && tree.log_probs;
  return {
    id: told.token_id,
    text: told.text,
    origin: told.origin,
    proposer: told.proposer,
    step: step.number,
    position: step.position + at,
    probability: known ? Math.exp(tree.log_probs[node]) : null,
    logprob: logprobs && logprobs[at] ? logprobs[at].logprob : null,
  };
};

export class Answer {
  constructor(now = performance.now()) {
    this.steps = [];
    this.text = "";
    this.count = 0; // tokens
    this.begun = now;
    this.finish = null; // why it ended
    this.speculation = null; // totals
    this.seed = null;
    this.traced = false;
  }

  // Takes in a choice of a chunk.
  add(choice, now = performance.now()) {
    const text = (choice.delta && choice.delta.content) || "";
    const trace = choice.trace;
    this.text += text;
    this.seed = choice.seed ?? this.seed;
    if (choice.finish_reason) {
      this.finish = choice.finish_reason;
      this.speculation = choice.speculation || null;
    }
    if (!trace && (this.traced || !text)) return; // a step may come in several chunks, of which the first tells of it
    const tree = trace ? trace.tree : null;
    const step = {
      number: this.steps.length + 1,
      position: trace ? trace.position : this.count,
      proposer: trace ? trace.proposer : "",
      before: this.lastText,
      tree,
      rows: trace ? trace.rows : 1,
      passRows: trace ? trace.pass_rows : null,
      milliseconds: trace ? 1e3 * trace.pass_seconds : null,
      at: (now - this.begun) / 1e3,
    };
    const logprobs = choice.logprobs && choice.logprobs.content;
    step.tokens = trace
      ? trace.tokens.map((told, at) => token(step, at, told, logprobs, tree))
      : [token(step, 0, { token_id: null, text, origin: "unknown", proposer: null }, logprobs, null)];
    this.traced = this.traced || !!trace;
    this.count += trace ? step.tokens.length : 1;
    this.steps.push(step);
    if (this.steps.length > KEPT_STEPS) this.steps[this.steps.length - 1 - KEPT_STEPS].tree = null;
  }

  get lastText() {
    const last = this.steps[this.steps.length - 1];
    return last && last.tokens.length ? last.tokens[last.tokens.length - 1].text : null;
  }

  get ids() {
    return this.steps.flatMap((step) => step.tokens.map((each) => each.id));
  }

  // Tokens a verify step.
  get acceptanceLength() {
    return this.steps.length ? this.count / this.steps.length : 0;
  }

  // Between the first step and the last; the first one's tokens came before the clock began.
  get tokensPerSecond() {
    const [first, last] = [this.steps[0], this.steps[this.steps.length - 1]];
    if (!first || last.at <= first.at) return 0;
    return (this.count - first.tokens.length) / (last.at - first.at);
  }

  // Whether drafts have stopped coming: none in the last steps, though there were some, or should be.
  get alone() {
    return this.traced && this.steps.length >= 4 && this.steps.slice(-4).every((step) => step.rows === 1);
  }
}

// How many tokens two answers have in common from the first on, and how many both have so far.
export function agreement(one, other) {
  const [a, b] = [one.ids, other.ids];
  const both = Math.min(a.length, b.length);
  let same = 0;
  while (same < both && a[same] === b[same]) same += 1;
  return { same, both };
}
