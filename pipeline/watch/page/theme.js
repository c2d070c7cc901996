// Sets the colors before anything is drawn: those of the last visit, else those of the system.
(() => {
  let kept = null;
  try { kept = localStorage.getItem("gpupipe-theme"); } catch { /* storage is off */ }
  if (kept === "dark" || kept === "light") document.documentElement.dataset.theme = kept;
})();
