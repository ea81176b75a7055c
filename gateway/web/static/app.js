// The page: a conversation or a race on one side, the tree of the step and its figures on the other.
import { html, useEffect, useRef, useState } from "./vendor/htm-preact.js";
import { ChatView } from "./chat_view.js";
import * as history from "./history.js";
import { RaceView } from "./race_view.js";
import { ServicesView } from "./services_view.js";
import * as settingsStore from "./settings.js";
import { SettingsView } from "./settings_view.js";
import { Strips } from "./strips.js";
import { Tabs } from "./tabs.js";
import { Legend } from "./token_text.js";
import { TreeView } from "./tree_view.js";
import { useServer } from "./use_server.js";

const TABS = [["chat", "Chat"], ["race", "Race"], ["services", "Services"]];
const MOST_ANSWERS = 20; // whose steps are kept

// Those that may be asked for, and whoever else has drafted what is shown, such as a grammar.
function proposersOf(server, answer) {
  const drew = answer ? answer.steps.flatMap((step) => step.tokens.map((token) => token.proposer)).filter(Boolean) : [];
  return [...new Set([...(server.model ? server.model.proposers : []), ...drew])];
}

function Status({ server }) {
  const words = server.error ? server.error.message : server.model ? `${server.model.id}: ${server.status}` : server.status || "connecting";
  const missing = server.missing.map((each) => each.proposer);
  return html`<p class="status" role="status">
    <span class=${server.error || server.status !== "ready" ? "dot bad" : missing.length ? "dot part" : "dot good"} aria-hidden="true" />
    ${words}${missing.length > 0 && html`<span class="absent"> · not attached: ${missing.join(", ")}</span>`}
  </p>`;
}

function History({ conversations, open, onOpen, onNew, onForget }) {
  return html`<details class="panel history">
    <summary>History (${conversations.filter((each) => each.messages.length).length})</summary>
    <ul>${conversations.filter((each) => each.messages.length).map((each) => html`<li key=${each.id}>
      <button type="button" class="link" aria-current=${each.id === open} onClick=${() => onOpen(each.id)}>${history.titleOf(each)}</button>
      <button type="button" class="link" aria-label=${`Forget: ${history.titleOf(each)}`} onClick=${() => onForget(each.id)}>×</button>
    </li>`)}</ul>
    <button type="button" onClick=${onNew}>New conversation</button>
  </details>`;
}

export function App() {
  const [server, refresh] = useServer();
  const [settings, setSettings] = useState(settingsStore.load);
  const [tab, setTab] = useState("chat");
  const [conversations, setConversations] = useState(() => {
    const kept = history.load();
    return kept.length ? kept : [history.fresh()];
  });
  const [open, setOpen] = useState(() => conversations[0].id);
  const answers = useRef(new Map()).current;
  const [shown, setShown] = useState(null);
  const [chosen, setChosen] = useState(null);
  const [, redraw] = useState(0);
  const [said, say] = useState("");

  useEffect(() => history.save(conversations), [conversations]);
  useEffect(() => {
    settingsStore.save(settings);
    document.documentElement.dataset.theme = settings.theme;
  }, [settings]);

  const show = (id, answer) => {
    if (!answer) return;
    answers.set(id, answer);
    if (answers.size > MOST_ANSWERS) answers.delete(answers.keys().next().value);
    setShown(answer);
    redraw((count) => count + 1);
  };
  const onMessages = (id, messages) =>
    setConversations((all) => all.map((each) => (each.id === id ? { ...each, messages } : each)));
  const begin = () => {
    const made = history.fresh();
    setConversations((all) => [made, ...all.filter((each) => each.messages.length)]);
    setOpen(made.id);
    setShown(null);
  };
  const forget = (id) => {
    const left = conversations.filter((each) => each.id !== id);
    const kept = left.length ? left : [history.fresh()];
    setConversations(kept);
    if (id === open) setOpen(kept[0].id);
  };

  const conversation = conversations.find((each) => each.id === open) || conversations[0];
  const shared = { settings, model: server.model, shown, chosen, onShow: show, onPick: setChosen, say };
  return html`
    <header class="top">
      <h1>Slipstream</h1>
      <${Status} server=${server} />
      <${Tabs} tabs=${TABS} open=${tab} onOpen=${setTab} />
    </header>
    <main>
      <div class="side one" id="view" role="tabpanel" aria-labelledby=${`tab-${tab}`}>
        <div hidden=${tab !== "chat"}>
          <${ChatView} key=${conversation.id} ...${shared} conversation=${conversation} onMessages=${onMessages} answers=${answers} />
          <${History} conversations=${conversations} open=${conversation.id} onNew=${begin} onForget=${forget}
            onOpen=${(id) => { setOpen(id); setShown(null); }} />
        </div>
        <div hidden=${tab !== "race"}><${RaceView} ...${shared} /></div>
        ${tab === "services" && html`<${ServicesView} server=${server} refresh=${refresh} />`}
      </div>
      <div class="side two">
        <${TreeView} answer=${shown} chosen=${chosen} onChoose=${setChosen} />
        <${Strips} answer=${shown} />
        <${Legend} proposers=${proposersOf(server, shown)} />
        <details class="panel" open=${window.innerWidth > 900}><summary>Settings</summary>
          <${SettingsView} settings=${settings} onChange=${setSettings} server=${server} onKey=${refresh} /></details>
      </div>
    </main>
    <p class="hidden" aria-live="polite">${said}</p>`;
}
