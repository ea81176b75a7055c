// A conversation: questions, streamed answers, and where the answer under way can be stopped.
import { html, useState } from "./vendor/htm-preact.js";
import { generate } from "./generate.js";
import { requestBody } from "./settings.js";
import { TokenText } from "./token_text.js";
import { useFollow } from "./use_follow.js";

const summary = (answer) => {
  if (!answer.steps.length) return answer.finish === "stopped" ? "stopped" : "";
  const parts = [`${answer.count} tokens in ${answer.steps.length} steps`];
  parts.push(`${answer.acceptanceLength.toFixed(2)} tokens a step`, `${answer.tokensPerSecond.toFixed(0)} tokens/s`);
  if (answer.seed !== null) parts.push(`seed ${answer.seed}`);
  if (answer.finish === "stopped" || answer.finish === "length") parts.push(answer.finish === "length" ? "cut at its longest" : "stopped");
  return parts.join(" · ");
};

function Message({ message, answer, chosen, onPick, onPoint, running }) {
  const live = answer && answer.steps.length;
  return html`<li class=${`message ${message.role}`}>
    <h3 class="hidden">${message.role === "user" ? "You" : "The model"}</h3>
    <div class="text" aria-busy=${!!running}>${live
      ? html`<${TokenText} answer=${answer} chosen=${chosen} onPick=${onPick} onPoint=${onPoint} />`
      : message.content}${running && html`<span class="cursor" aria-hidden="true" />`}</div>
    ${message.note && html`<p class="note">${message.note}</p>`}
  </li>`;
}

// `answers` are those of this visit by message, whose steps can be looked at; `shown` is the one whose trees are shown.
export function ChatView({ conversation, onMessages, settings, model, answers, shown, chosen, onShow, onPick, say }) {
  const [draft, setDraft] = useState("");
  const [pointed, setPointed] = useState("");
  const [error, setError] = useState("");
  const [running, setRunning] = useState(null);
  const messages = conversation.messages;
  const [list, onScroll] = useFollow(running && shown ? shown.count : messages.length, messages.length);

  const ask = async (event) => {
    event.preventDefault();
    const question = draft.trim();
    if (!question || running || !model) return;
    setError("");
    setDraft("");
    const asked = [...messages.map(({ role, content }) => ({ role, content })), { role: "user", content: question }];
    const id = `${conversation.id} ${asked.length}`;
    const stop = new AbortController();
    let note = "";
    const put = (answer) => {
      onMessages(conversation.id, [...messages, asked[asked.length - 1], { role: "assistant", content: answer.text, id, note: summary(answer) || note }]);
      onShow(id, answer);
    };
    setRunning({ stop, id });
    onPick(null);
    say("The model answers");
    onMessages(conversation.id, [...messages, asked[asked.length - 1], { role: "assistant", content: "", id }]);
    try {
      const body = requestBody(settings, model.id, asked);
      const answer = await generate(body, { signal: stop.signal, onStep: put, onNotice: (words) => { note = words; setError(words); } });
      say(`The answer is complete: ${summary(answer)}`);
    } catch (failed) {
      setError(failed.message);
      say(`The answer failed: ${failed.message}`);
    }
    setRunning(null);
  };

  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) ask(event);
    if (event.key === "Escape" && running) running.stop.abort();
  };

  return html`<section class="panel chat" aria-label="Conversation">
    <ol class="messages" tabindex="0" ref=${list} onScroll=${onScroll}>
      ${!messages.length && html`<li class="empty">Ask something. Tokens are coloured by how they came.</li>`}
      ${messages.map((message, at) => html`<${Message} key=${at} message=${message} answer=${answers.get(message.id)}
        running=${running && running.id === message.id} chosen=${shown && shown === answers.get(message.id) ? chosen : null}
        onPick=${(step) => { onShow(message.id, answers.get(message.id)); onPick(step.number); }} onPoint=${setPointed} />`)}
    </ol>
    <output class="pointed">${pointed || "\u00a0"}</output>
    ${error && html`<p class="error" role="alert">${error}</p>`}
    <form class="ask" onSubmit=${ask}>
      <label class="hidden" for="question">Your message</label>
      <textarea id="question" rows="2" placeholder="Message" value=${draft} onInput=${(event) => setDraft(event.target.value)} onKeyDown=${onKeyDown} />
      ${running
        ? html`<button type="button" class="stop" onClick=${() => running.stop.abort()}>Stop</button>`
        : html`<button type="submit" disabled=${!model}>Send</button>`}
    </form>
  </section>`;
}
