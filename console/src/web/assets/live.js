// Replaces the content when the server tells of changes. Nothing of the page needs it.
"use strict";
(() => {
  const main = document.querySelector("main[data-live]");
  const button = document.getElementById("pause");
  if (!main || !window.EventSource) return;
  let paused = false;
  let source = null;

  const busy = () => {
    const at = document.activeElement;
    const selected = window.getSelection();
    return (at && main.contains(at) && at.matches("input, select, textarea"))
      || (selected && !selected.isCollapsed && main.contains(selected.anchorNode));
  };

  // What has the focus is found again by its address or its label.
  const focused = () => {
    const at = document.activeElement;
    if (!at || at === main || !main.contains(at)) return null;
    for (const name of ["href", "aria-label"]) {
      const value = at.getAttribute(name);
      if (value) return `[${name}="${CSS.escape(value)}"]`;
    }
    return null;
  };

  const show = (text) => {
    if (paused || busy()) return;
    const again = focused();
    const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const parsed = new DOMParser().parseFromString(text, "text/html");
    main.replaceChildren(...parsed.body.childNodes);
    [...main.querySelectorAll(".scroll")].forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
    const target = again && main.querySelector(again);
    if (target) target.focus({ preventScroll: true });
  };

  const open = () => {
    source = new EventSource(main.dataset.live);
    source.onmessage = (event) => { document.body.classList.remove("away"); show(event.data); };
    source.addEventListener("away", () => document.body.classList.add("away"));
    source.onerror = () => document.body.classList.add("away");
    source.onopen = () => document.body.classList.remove("away");
  };

  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
    });
  }
  // Nobody looks at a page that is hidden.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { if (source) source.close(); source = null; } else if (!source) { open(); }
  });
  open();
})();
