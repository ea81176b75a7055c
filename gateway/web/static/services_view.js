// The verify services behind this server, what drafts for them, and what is missing.
import { html, useState } from "./vendor/htm-preact.js";
import { post } from "./api.js";

const percent = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(0)} %` : "–");
const hours = (seconds) => (seconds < 5400 ? `${Math.round(seconds / 60)} min` : `${(seconds / 3600).toFixed(1)} h`);

// Has a draft service leave its requests to others, or take theirs over.
function Share({ service, drafter, onDone, onError }) {
  const set = (share) => async () => {
    try {
      await post("services/share", { verify_service: service.address, epoch: drafter.epoch, share });
      onError("");
      onDone();
    } catch (error) {
      onError(error.message);
    }
  };
  return drafter.share > 0
    ? html`<button type="button" aria-label=${`Hand over from ${drafter.name}`} onClick=${set(0)}>Hand over</button>`
    : html`<button type="button" aria-label=${`Take over with ${drafter.name}`} onClick=${set(1)}>Take over</button>`;
}

function Drafters({ service, allowed, onDone, onError }) {
  const { drafters } = service;
  // The last one keeps what others leave, so that alone it has nobody to hand over to.
  const several = allowed && new Set(drafters.map((each) => each.epoch)).size > 1;
  if (!drafters.length) return html`<p class="none">Nothing is attached that drafts; tokens come one a step.</p>`;
  return html`<div class="wide"><table aria-label="What drafts">
    <thead><tr>${["Proposer", "Draft service", "Requests", "Share", "Drafted", "Accepted", "Way", ...(several ? [""] : [])].map((head) => html`<th scope="col">${head}</th>`)}</tr></thead>
    <tbody>${drafters.map((each, at) => html`<tr key=${`${each.name} ${each.proposer}`}>
      <th scope="row">${each.proposer}</th><td>${each.name}</td><td>${each.requests}</td><td>${each.share}</td>
      <td>${each.drafted_tokens}</td><td>${percent(each.accepted_tokens, each.drafted_tokens)}</td><td>${each.transport}</td>
      ${several && html`<td>${drafters.findIndex((other) => other.epoch === each.epoch) === at &&
        html`<${Share} service=${service} drafter=${each} onDone=${onDone} onError=${onError} />`}</td>`}
    </tr>`)}</tbody>
  </table></div>`;
}

export function ServicesView({ server, refresh }) {
  const [error, setError] = useState("");
  return html`<section class="panel services" aria-label="Services">
    <h2>Services</h2>
    ${server.error && html`<p class="error" role="alert">${server.error.message}</p>`}
    ${error && html`<p class="error" role="alert">${error}</p>`}
    ${server.services.map((service) => html`<article key=${service.address}>
      <h3>${service.address} <small class=${service.ready ? "good" : "bad"}>${service.ready ? "ready" : "away"}</small></h3>
      ${service.model && html`<p>${service.model} on ${service.device}, ${service.mode} mode, for ${hours(service.serving_seconds)}, ${""}
        ${service.running} running, ${service.queued} queued</p>`}
      <${Drafters} service=${service} allowed=${server.sharesAllowed} onDone=${refresh} onError=${setError} />
    </article>`)}
    ${server.missing.length > 0 && html`<h3>Missing</h3>
      <ul class="missing">${server.missing.map((each) => html`<li key=${each.proposer}><b>${each.proposer}</b>: ${each.reason}</li>`)}</ul>`}
  </section>`;
}
