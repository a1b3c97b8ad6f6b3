"use strict";
(() => {
  const root = document.documentElement, said = document.getElementById("said");
  root.classList.add("scripted");
  const say = (text) => { said.textContent = ""; setTimeout(() => { said.textContent = text; }, 50); };

  // copy
  const copyText = async (text) => {
    if (navigator.clipboard && window.isSecureContext) {
      try { await navigator.clipboard.writeText(text); return true; } catch { /* the old way follows */ }
    }
    const area = document.createElement("textarea");
    area.value = text;
    area.className = "vh";
    document.body.append(area);
    area.select();
    const done = document.execCommand("copy");
    area.remove();
    return done;
  };
  for (const button of document.querySelectorAll("button[data-copy]")) {
    button.addEventListener("click", async () => {
      const done = await copyText(document.getElementById(button.dataset.copy).textContent);
      const word = done ? "Copied" : "Not copied";
      button.textContent = word;
      say(word);
      setTimeout(() => { button.textContent = "Copy"; }, 1600);
    });
  }

  // sorting: numbers by their exact value, texts by themselves, what is missing always last
  const table = document.getElementById("cells");
  if (table) {
    const body = table.tBodies[0], planned = [...body.rows];
    const heads = [...table.tHead.rows[0].cells];
    const key = (row, at) => {
      const cell = row.cells[at];
      if (cell.dataset.v !== undefined) return Number(cell.dataset.v);
      return cell.querySelector(".no") || !cell.textContent ? null : cell.textContent;
    };
    const compare = (a, b) => {
      if (typeof a === "number" && typeof b === "number") return a - b;
      if (typeof a !== typeof b) return typeof a === "number" ? -1 : 1;
      return a.localeCompare(b);
    };
    heads.forEach((head, at) => {
      const button = document.createElement("button"), name = head.textContent;
      button.type = "button";
      button.textContent = name;
      head.replaceChildren(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now === "descending" ? "ascending" : now === "ascending" ? null : "descending";
        for (const other of heads) other.removeAttribute("aria-sort");
        let rows = planned;
        if (next) {
          head.setAttribute("aria-sort", next);
          const sign = next === "ascending" ? 1 : -1;
          rows = planned.map((row) => [key(row, at), row]).sort((a, b) => {
            if (a[0] === null || b[0] === null) return (a[0] === null) - (b[0] === null);
            return sign * compare(a[0], b[0]);
          }).map((pair) => pair[1]);
        }
        body.append(...rows);
        say(next ? `Sorted by ${name}, ${next}` : "In the order of the plan");
      });
    });
  }

  // a cell's panel: the focus goes in and comes back, Escape closes, arrows walk
  let from = null;
  const open = () => {
    const id = decodeURIComponent(location.hash.slice(1));
    const found = id ? document.getElementById(id) : null;
    return found && found.classList.contains("panel") ? found : null;
  };
  document.addEventListener("click", (event) => {
    const link = event.target.closest ? event.target.closest("a[href^='#']") : null;
    if (link && !link.closest(".panel")) from = link;
  });
  const close = () => {
    const panel = open();
    if (!panel) return;
    const { scrollX, scrollY } = window;
    location.hash = panel.querySelector(".close").getAttribute("href");
    window.scrollTo({ left: scrollX, top: scrollY, behavior: "instant" });
    if (from) from.focus({ preventScroll: true });
  };
  const show = () => {
    const panel = open();
    if (panel) { panel.scrollTop = 0; panel.focus({ preventScroll: true }); }
  };
  for (const link of document.querySelectorAll(".panel .close")) {
    link.addEventListener("click", (event) => { event.preventDefault(); close(); });
  }
  window.addEventListener("hashchange", show);
  document.addEventListener("click", (event) => {
    if (open() && !event.target.closest(".panel, a, button, label, input")) close();
  });
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { close(); return; }
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    const panel = open();
    if (!panel || document.activeElement !== panel) return;
    const steps = [...panel.querySelectorAll(".step")];
    const step = event.key === "ArrowLeft" ? steps.find((s) => s.title.startsWith("Previous")) : steps.find((s) => s.title.startsWith("Next"));
    if (step) { event.preventDefault(); step.click(); }
  });

  // arrows walk through the matrix
  for (const matrix of document.querySelectorAll(".matrix")) {
    matrix.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
      const cell = event.target.closest("td");
      if (!move || !cell) return;
      let y = cell.parentElement.rowIndex, x = cell.cellIndex, next = null;
      do {
        y += move[0];
        x += move[1];
        next = matrix.rows[y] && matrix.rows[y].cells[x] ? matrix.rows[y].cells[x].querySelector("a.cell") : undefined;
      } while (next === null);
      if (next) { event.preventDefault(); next.focus(); }
    });
  }
  show();
})();
