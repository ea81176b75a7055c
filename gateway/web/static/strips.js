// Strips of figures over an answer's last steps.
import { Component, html } from "./vendor/htm-preact.js";
import { KEPT_STEPS } from "./answer.js";

const HEIGHT = 74;
const WINDOW = 12; // steps over which a mean is taken
const SECONDS = 0.5; // over which a rate is taken at least: steps may arrive together

const rate = (steps, at) => {
  let [from, tokens] = [at, 0];
  while (from > 0 && steps[at].at - steps[from].at < SECONDS) {
    tokens += steps[from].tokens.length;
    from -= 1;
  }
  const seconds = steps[at].at - steps[from].at;
  return seconds >= SECONDS / 5 ? tokens / seconds : null;
};
const mean = (steps, at) => {
  const part = steps.slice(Math.max(0, at - WINDOW), at + 1);
  return part.reduce((sum, step) => sum + step.tokens.length, 0) / part.length;
};

const STRIPS = [
  { name: "tokens/s", of: rate },
  { name: "tokens a step", of: mean },
  { name: "rows a pass", of: (steps, at) => steps[at].passRows },
  { name: "ms a pass", of: (steps, at) => steps[at].milliseconds },
];

const figure = (value) => (value === null || value === undefined ? "–" : value < 10 ? value.toFixed(2) : value.toFixed(0));

// One chart, which uPlot draws on a canvas.
class Strip extends Component {
  place = { current: null };

  componentDidMount() {
    const colour = getComputedStyle(this.place.current);
    const stroke = () => colour.getPropertyValue("--accent");
    const faint = () => colour.getPropertyValue("--faint");
    const axis = { stroke: faint, grid: { stroke: faint, width: 0.3 }, ticks: { show: false }, font: "10px sans-serif" };
    this.plot = new window.uPlot(
      {
        width: Math.max(80, this.place.current.clientWidth),
        height: HEIGHT,
        legend: { show: false },
        cursor: { show: false },
        scales: { x: { time: false }, y: { range: (_, low, high) => [0, high > 0 ? high * 1.1 : 1] } },
        axes: [{ ...axis, size: 18, space: 60 }, { ...axis, size: 38, space: 24 }],
        series: [{}, { stroke, width: 1.5, points: { show: false } }],
      },
      this.props.data,
      this.place.current,
    );
    this.watcher = new ResizeObserver(() =>
      this.plot.setSize({ width: Math.max(80, this.place.current.clientWidth), height: HEIGHT }),
    );
    this.watcher.observe(this.place.current);
  }

  componentDidUpdate() {
    this.plot.setData(this.props.data);
  }

  componentWillUnmount() {
    this.watcher.disconnect();
    this.plot.destroy();
  }

  render({ name, data }) {
    const latest = figure(data[1][data[1].length - 1]);
    return html`<figure class="strip"><figcaption>${name} <b>${latest}</b></figcaption><div ref=${this.place} aria-hidden="true" /></figure>`;
  }
}

export function Strips({ answer }) {
  const steps = answer ? answer.steps.slice(-KEPT_STEPS) : [];
  const numbers = steps.map((step) => step.number);
  return html`<section class="panel strips" aria-label="Figures of the last steps">
    ${STRIPS.map(({ name, of }) => html`<${Strip} key=${name} name=${name} data=${[numbers, steps.map((_, at) => of(steps, at) ?? null)]} />`)}
  </section>`;
}
