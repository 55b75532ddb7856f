// What every page does once scripts run; without them it stays as it was sent.
import { live } from "./live.js";
import { localTimes } from "./times.js";
import { tries } from "./try.js";

const meta = (name) => document.querySelector(`meta[name="${name}"]`)?.content ?? "";

localTimes(document);

const button = document.getElementById("theme");
if (button !== null) {
  const root = document.documentElement;
  const isDark = () =>
    (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const show = () => {
    button.textContent = isDark() ? "Light" : "Dark";
    button.setAttribute("aria-label", isDark() ? "Show in light colours" : "Show in dark colours");
  };
  button.hidden = false;
  button.addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    try { localStorage.setItem("theme", root.dataset.theme); } catch { /* for this page alone then */ }
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  show();
}

// <form data-confirm="Roll back?"> asks first.
document.addEventListener("submit", (event) => {
  const question = event.target.getAttribute("data-confirm");
  if (question && !confirm(question)) event.preventDefault();
});

// <button data-copy="id"> copies the text of that element.
document.addEventListener("click", async (event) => {
  const copier = event.target.closest?.("button[data-copy]");
  if (!copier) return;
  const text = document.getElementById(copier.dataset.copy).textContent;
  try {
    await navigator.clipboard.writeText(text);
    copier.textContent = "Copied";
  } catch {
    getSelection().selectAllChildren(document.getElementById(copier.dataset.copy));
    copier.textContent = "Selected";
  }
  setTimeout(() => { copier.textContent = "Copy"; }, 2000);
});

if (document.body.dataset.live) {
  live(document.body.dataset.live, meta("run"), document.getElementById("link-state"));
}

for (const form of document.querySelectorAll("form[data-try]")) tries(form);

// Who logs out in one tab has left all of them: their streams end with the pages.
const LEFT = "left";
document.addEventListener("submit", (event) => {
  if (!event.defaultPrevented && event.target.getAttribute("action")?.endsWith("logout")) {
    try { localStorage.setItem(LEFT, String(Date.now())); } catch { /* this tab alone then */ }
  }
});
addEventListener("storage", (event) => event.key === LEFT && setTimeout(() => location.reload(), 300));
