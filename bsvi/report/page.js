"use strict";
(() => {
  const store = {
    get(key) { try { return JSON.parse(sessionStorage.getItem("bsvi:" + key)); } catch { return null; } },
    set(key, value) { try { sessionStorage.setItem("bsvi:" + key, JSON.stringify(value)); } catch { /* no storage: nothing to keep */ } },
  };

  // Tables sort by the number behind a cell, or by its text; cells without one come last either way.
  const keyOf = (row, column, numeric) => {
    const cell = row.cells[column];
    if (!numeric) return cell.textContent.trim().toLowerCase();
    return cell.dataset.value === undefined ? null : Number(cell.dataset.value);
  };
  const orders = new Map();  // of each table: its rows in the order they came in, which is the paper's
  const sort = (table, column, direction) => {
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    const numeric = direction && heads[column].classList.contains("number");
    const rows = orders.get(table).map((row) => [direction ? keyOf(row, column, numeric) : null, row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      const order = numeric ? a - b : a.localeCompare(b);
      return direction === "ascending" ? order : -order;
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
    heads.forEach((head, i) => (direction && i === column ? head.setAttribute("aria-sort", direction) : head.removeAttribute("aria-sort")));
    table.closest(".table").classList.toggle("sorted", Boolean(direction));
    table.closest(".table").querySelector(".order select").value = direction ? `${column} ${direction}` : "";
  };
  const sorted = store.get("sorted") || {};
  for (const table of document.querySelectorAll("table.sortable")) {
    orders.set(table, [...table.tBodies[0].rows]);
    const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
    const choose = (column, direction) => {
      sort(table, column, direction);
      if (direction) sorted[table.id] = [column, direction]; else delete sorted[table.id];
      store.set("sorted", sorted);
    };
    // The order can also be chosen from a list: on a narrow screen there are no headings, and the list leads back.
    const select = document.createElement("select");
    select.add(new Option("as in the paper", ""));
    heads.forEach((head, column) => {
      const first = head.classList.contains("number") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      for (const direction of [first, other]) {
        select.add(new Option(`${head.dataset.label} ${direction === "ascending" ? "↑" : "↓"}`, `${column} ${direction}`));
      }
      head.querySelector("button").addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        choose(column, now === first ? other : now === other ? "" : first);
      });
    });
    select.addEventListener("change", () => {
      const [column, direction] = select.value.split(" ");
      choose(Number(column), direction || "");
    });
    const label = document.createElement("label");
    label.append("Order: ", select);
    const line = document.createElement("p");
    line.className = "order";
    line.append(label);
    table.closest(".scroll").before(line);
    const [column, direction] = sorted[table.id] || [];
    if (direction && column < heads.length) sort(table, column, direction);
  }

  // Figures enlarge in one dialog; Escape closes it, arrows move on, and the focus goes back to where it was.
  const dialog = document.getElementById("zoom");
  const buttons = [...document.querySelectorAll("figure button")];
  let current = 0;
  const show = (index) => {
    current = (index + buttons.length) % buttons.length;
    const figure = buttons[current].closest("figure");
    dialog.querySelector(".content").replaceChildren(figure.querySelector("svg").cloneNode(true));
    dialog.querySelector("b").textContent = figure.querySelector("figcaption b").textContent.replace(/\.$/, "");
    dialog.querySelector("p").textContent = figure.querySelector(".caption").textContent;
    if (!dialog.open) dialog.showModal();
  };
  buttons.forEach((button, index) => button.addEventListener("click", () => show(index)));
  if (dialog) {
    dialog.addEventListener("close", () => buttons[current].focus());
    dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
    dialog.addEventListener("keydown", (event) => {
      if (event.key === "ArrowRight") show(current + 1);
      if (event.key === "ArrowLeft") show(current - 1);
    });
    dialog.querySelector(".close").addEventListener("click", () => dialog.close());
    dialog.querySelector(".next").addEventListener("click", () => show(current + 1));
    dialog.querySelector(".previous").addEventListener("click", () => show(current - 1));
  }

  // Figures are saved from the page itself, in the colours of light: it may lie without the files beside it.
  const light = document.styleSheets[0].cssRules[0].style;
  for (const figure of document.querySelectorAll("figure")) {
    const link = document.createElement("a");
    link.className = "save";
    link.textContent = "Save as SVG";
    link.download = `${figure.dataset.name}.svg`;
    link.href = "#";
    link.addEventListener("click", (event) => {
      if (link.href.startsWith("blob:")) return;
      event.preventDefault();
      const text = new XMLSerializer().serializeToString(figure.querySelector("svg"));
      const coloured = text.replace(/var\((--[\w-]+)\)/g, (_, name) => light.getPropertyValue(name).trim());
      link.href = URL.createObjectURL(new Blob([coloured], { type: "image/svg+xml" }));
      link.click();
    });
    figure.querySelector("figcaption").append(" ", link);
  }

  // What a reader has opened, and how far they have read, survives a reload.
  const folds = [...document.querySelectorAll("details[id]")];
  const open = store.get("open") || {};
  for (const fold of folds) {
    if (fold.id in open) fold.open = open[fold.id];
    fold.addEventListener("toggle", () => { open[fold.id] = fold.open; store.set("open", open); });
  }
  // On paper nothing can be opened: warnings are printed whatever the reader has folded.
  for (const [event, open] of [["beforeprint", true], ["afterprint", false]]) {
    window.addEventListener(event, () => document.querySelectorAll("details.warnings").forEach((fold) => {
      if (open) { fold.dataset.was = fold.open ? "open" : ""; fold.open = true; } else fold.open = fold.dataset.was === "open";
    }));
  }
  const seconds = Number(document.body.dataset.reload || 0);
  if (!seconds) return;
  history.scrollRestoration = "manual";
  const at = store.get("scroll");
  if (at !== null && !location.hash) window.scrollTo({ top: at, behavior: "instant" });
  window.addEventListener("pagehide", () => store.set("scroll", window.scrollY));
  const pause = document.getElementById("pause");
  let paused = store.get("paused") === true;
  const name = () => { pause.textContent = paused ? "Go on" : "Pause"; pause.setAttribute("aria-pressed", String(paused)); };
  pause.addEventListener("click", () => { paused = !paused; store.set("paused", paused); name(); });
  name();
  setInterval(() => {
    const reading = paused || document.hidden || dialog.open || String(getSelection()) !== "";
    if (!reading) { store.set("scroll", window.scrollY); location.reload(); }
  }, seconds * 1000);
})();
