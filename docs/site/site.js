// Broad tables and blocks scroll by the keyboard too: they are wrapped once the page is there.
// The search is a dialog, and has a name for who hears the page.
addEventListener("load", () => {
  document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
  const reach = () => {
    for (const each of document.querySelectorAll(".md-typeset__scrollwrap, .md-typeset pre > code")) {
      each.tabIndex = 0;
    }
  };
  reach();
  new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
});
