// Light or dark, as the browser has it or as it was chosen here; before anything is painted.
(() => {
  const root = document.documentElement;
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* it may not keep anything */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;
  root.classList.add("scripted");
})();
