// The views' tabs: arrow keys, Home and End go from one to the next, Tab goes on into the view.
import { html } from "./vendor/htm-preact.js";

const STEPS = { ArrowRight: 1, ArrowLeft: -1 };

export function Tabs({ tabs, open, onOpen }) {
  const onKeyDown = (event) => {
    const at = tabs.findIndex(([name]) => name === open);
    const to = { Home: 0, End: tabs.length - 1 }[event.key] ?? at + (STEPS[event.key] || 0);
    if (to === at) return;
    event.preventDefault();
    const [name] = tabs[(to + tabs.length) % tabs.length];
    onOpen(name);
    document.getElementById(`tab-${name}`).focus();
  };
  return html`<div role="tablist" aria-label="Views" onKeyDown=${onKeyDown}>${tabs.map(([name, label]) => html`<button
    type="button" role="tab" key=${name} id=${`tab-${name}`} aria-selected=${open === name} aria-controls="view"
    tabindex=${open === name ? 0 : -1} onClick=${() => onOpen(name)}>${label}</button>`)}</div>`;
}
