"use strict";
// Sorting: numbers by data-order, everything else by its text; rows without a value stay at the end.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[table.tHead.rows.length - 1].cells];
  heads.forEach((head, column) => {
    const button = head.querySelector("[role=button]"); // no <button>: heads that print on every page would lose it
    button.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        button.click();
      }
    });
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const number = head.classList.contains("num");
      const value = (row) => {
        const cell = row.cells[column];
        if (!number) return cell.textContent.trim();
        return cell.dataset.order === undefined ? null : Number(cell.dataset.order);
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const left = value(a), right = value(b);
        if (left === null || right === null) return (left === null) - (right === null);
        const order = number ? left - right : left.localeCompare(right, undefined, { numeric: true });
        return down ? -order : order;
      });
      table.tBodies[0].append(...rows);
    });
  });
}

// Light or dark: the system's choice until somebody makes another.
const theme = document.getElementById("theme");
const system = window.matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme || (system.matches ? "dark" : "light")) === "dark";
const show = () => {
  theme.textContent = isDark() ? "light" : "dark";
  theme.setAttribute("aria-label", `use ${theme.textContent} colours`);
  theme.setAttribute("aria-pressed", String(isDark()));
};
theme.addEventListener("click", () => {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  show();
});
theme.hidden = false; // without script there is nothing that it could do
system.addEventListener("change", show);
show();

// Enlarging is done by boxes that are ticked, without script; Escape unticks them.
window.addEventListener("keydown", (event) => {
  if (event.key === "Escape") document.querySelectorAll(".zoom:checked").forEach((one) => (one.checked = false));
});

// Paper: light, and nothing folded away.
window.addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((one) => (one.open = true)));
