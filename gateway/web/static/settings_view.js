// Settings of the next request, and of the page.
import { html, useState } from "./vendor/htm-preact.js";
import { apiKey, setApiKey } from "./settings.js";

const Field = ({ label, children }) => html`<label class="field"><span>${label}</span>${children}</label>`;

export function SettingsView({ settings, onChange, server, onKey }) {
  const [key, setKey] = useState(apiKey());
  const change = (name, of = "value") => (event) => onChange({ ...settings, [name]: event.target[of] });
  const number = (name, label, attributes) => html`<${Field} label=${label}>
    <input type="number" name=${name} value=${settings[name]} onInput=${change(name)} ...${attributes} /></${Field}>`;
  const proposers = server.model ? server.model.proposers : [];
  const usual = server.model && server.model.default_proposer;
  return html`<form class="settings" aria-label="Settings" onSubmit=${(event) => event.preventDefault()}>
    <${Field} label="Speculation">
      <select name="speculation" value=${settings.speculation} onChange=${change("speculation")}>
        <option value="auto">as it pays</option><option value="on">on</option><option value="off">off</option>
      </select></${Field}>
    <${Field} label="Proposer">
      <select name="proposer" value=${settings.proposer} onChange=${change("proposer")}>
        <option value="">server's default${usual ? ` (${usual})` : ""}</option>
        ${proposers.map((name) => html`<option key=${name} value=${name}>${name}</option>`)}
      </select></${Field}>
    ${number("maxNodes", "Rows a step", { min: 1, max: 64, placeholder: "default" })}
    ${number("maxDepth", "Depth", { min: 0, max: 63, placeholder: "default" })}
    ${number("temperature", "Temperature", { min: 0, max: 2, step: 0.1 })}
    ${number("maxTokens", "Longest answer", { min: 1 })}
    ${number("seed", "Seed", { min: 0, placeholder: "drawn" })}
    <${Field} label="Log probabilities">
      <input type="checkbox" name="logprobs" checked=${settings.logprobs} onChange=${change("logprobs", "checked")} /></${Field}>
    <${Field} label="System message">
      <textarea name="system" rows="2" value=${settings.system} onInput=${change("system")} /></${Field}>
    <${Field} label="API key, kept for this tab">
      <input type="password" name="key" autocomplete="off" value=${key}
        onInput=${(event) => { setKey(event.target.value); setApiKey(event.target.value); }} onChange=${onKey} /></${Field}>
    <${Field} label="Colours">
      <select name="theme" value=${settings.theme} onChange=${change("theme")}>
        <option value="auto">as the system</option><option value="light">light</option><option value="dark">dark</option>
      </select></${Field}>
  </form>`;
}
