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

  // What came while nothing was to be replaced.
  let kept = null;

  const show = (text) => {
    kept = paused || busy() ? text : null;
    if (kept !== null) return;
    const again = focused();
    const scrolled = [...main.querySelectorAll(".scroll")].map((one) => one.scrollLeft);
    const parsed = new DOMParser().parseFromString(text, "text/html");
    main.replaceChildren(...parsed.body.childNodes);
    [...main.querySelectorAll(".scroll")].forEach((one, n) => { one.scrollLeft = scrolled[n] || 0; });
    const target = again && main.querySelector(again);
    if (target) target.focus({ preventScroll: true });
  };

  // A connection that breaks is opened again by the browser, one that was refused, such as by a proxy, is not. What many
  // pages ask for again is spread.
  const FIRST = 1000, MOST = 60000;
  let pause = FIRST;
  let timer = null;

  const open = () => {
    timer = null;
    const opened = source = new EventSource(main.dataset.live);
    opened.onmessage = (event) => { document.body.classList.remove("away"); show(event.data); };
    opened.addEventListener("away", () => document.body.classList.add("away"));
    opened.onerror = () => {
      document.body.classList.add("away");
      if (opened !== source || opened.readyState !== EventSource.CLOSED) return;
      timer = setTimeout(open, pause * (0.5 + Math.random() / 2));
      pause = Math.min(2 * pause, MOST);
    };
    opened.onopen = () => { document.body.classList.remove("away"); pause = FIRST; };
  };

  const close = () => {
    clearTimeout(timer);
    if (source) source.close();
    timer = source = null;
    pause = FIRST;
  };

  if (button) {
    button.hidden = false;
    button.addEventListener("click", () => {
      paused = !paused;
      button.setAttribute("aria-pressed", String(paused));
      if (kept !== null) show(kept);
    });
  }
  // It is not told again.
  const later = () => { if (kept !== null) setTimeout(() => { if (kept !== null) show(kept); }); };
  main.addEventListener("focusout", later);
  document.addEventListener("selectionchange", later);
  // Nobody looks at a page that is hidden.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) close(); else if (!source) open();
  });
  if (!document.hidden) open();
})();
