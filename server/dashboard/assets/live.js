// Keeps a page up to date by server-sent events: each message is an object of element id → its new content.
import { morph } from "./morph.js";
import { localTimes } from "./times.js";

const LONGEST_MS = 15000;

export function live(url, run, state) {
  let source = null;
  let pause_ms = 1000;
  let timer = 0;
  let lost = false;

  const say = (kind, text) => {
    if (state.textContent === text) return;
    state.hidden = false;
    state.dataset.kind = kind;
    state.textContent = text;
  };

  const open = () => {
    clearTimeout(timer);
    if (source !== null || document.hidden) return;
    source = new EventSource(url);
    source.addEventListener("message", (event) => {
      for (const [id, html] of Object.entries(JSON.parse(event.data))) {
        const element = document.getElementById(id);
        if (element !== null) {
          morph(element, html);
          localTimes(element);
        }
      }
    });
    source.addEventListener("open", async () => {
      pause_ms = 1000;
      if (lost) await greet();
      else say("good", "live");
    });
    source.addEventListener("error", () => {
      close();
      lost = true;
      say("warn", "connection lost; trying again");
      timer = setTimeout(again, pause_ms);
      pause_ms = Math.min(2 * pause_ms, LONGEST_MS);
    });
  };

  const close = () => {
    source?.close();
    source = null;
  };

  // Whether the server is there again, and whether it is the same one, before the page says so.
  const ask = async () => {
    const root = new URL(url, location.href).pathname.replace(/live\/.*$/, "live");
    const reply = await fetch(root, { cache: "no-store", redirect: "manual" });
    if (reply.status === 401 || reply.type === "opaqueredirect") location.reload();
    return reply.ok ? (await reply.json()).run : null;
  };

  const greet = async () => {
    const now = await ask().catch(() => null);
    if (now === null) return;
    lost = false;
    say("good", now === run ? "live" : "live; the server was started again");
  };

  const again = async () => {
    try {
      if ((await ask()) !== null) return open();
    } catch { /* it is not there yet */ }
    timer = setTimeout(again, pause_ms);
    pause_ms = Math.min(2 * pause_ms, LONGEST_MS);
  };

  // A browser opens six connections to a host: pages that nobody looks at hold none.
  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  addEventListener("pagehide", close);
  addEventListener("pageshow", open);
  open();
}
