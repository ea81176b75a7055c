// The page begins here.
import { html, render } from "./vendor/htm-preact.js";
import { App } from "./app.js";

render(html`<${App} />`, document.getElementById("page"));
