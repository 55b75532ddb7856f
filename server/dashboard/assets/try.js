// A try without a new page: a photo that is dropped, pasted or chosen is asked about at once.

export function tries(form) {
  const answer = document.getElementById(form.getAttribute("data-try"));
  const file = form.querySelector('input[type="file"]');
  let shown = "";
  let asking = null;

  const ask = async (submitter) => {
    asking?.abort();
    const mine = (asking = new AbortController());
    const body = new FormData(form);
    if (submitter?.name) body.append(submitter.name, submitter.value);
    const photo = submitter?.name === "pick" ? null : file?.files[0];
    answer.setAttribute("aria-busy", "true");
    try {
      const csrf = document.querySelector('meta[name="csrf"]').content;
      const headers = { "X-Part": "1", "X-CSRF": csrf };
      const reply = await fetch(form.action, { method: "POST", body, headers, signal: mine.signal });
      if (reply.redirected || reply.status === 401) return location.reload();
      const html = await reply.text();
      const wanted = new DOMParser().parseFromString(html, "text/html").body;
      answer.replaceChildren(...[...wanted.childNodes].map((node) => document.importNode(node, true)));
      const img = answer.querySelector("img[data-photo]");
      if (img !== null && photo) {
        URL.revokeObjectURL(shown);
        img.src = shown = URL.createObjectURL(photo);
      }
    } catch (error) {
      if (error.name === "AbortError") return;
      const said = document.createElement("p");
      said.className = "notice bad";
      said.setAttribute("role", "alert");
      said.textContent = "The server did not answer; try again.";
      answer.replaceChildren(said);
    } finally {
      if (asking === mine) answer.removeAttribute("aria-busy");
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    ask(event.submitter);
  });

  form.querySelector("[data-random]")?.addEventListener("click", () => {
    const rows = Number(form.elements.dataset.selectedOptions[0].dataset.rows);
    form.elements.row.value = 1 + Math.floor(Math.random() * rows);
    ask(form.querySelector('[name="pick"]'));
  });

  if (file === null) return;
  const drop = form.querySelector("[data-drop]");
  const take = (files) => {
    const photo = [...files].find((each) => each.type.startsWith("image/"));
    if (photo === undefined) return;
    const held = new DataTransfer();
    held.items.add(photo);
    file.files = held.files;
    ask(null);
  };
  file.addEventListener("change", () => file.files.length && ask(null));
  for (const kind of ["dragenter", "dragover"]) {
    document.addEventListener(kind, (event) => {
      event.preventDefault();
      drop.classList.add("over");
    });
  }
  document.addEventListener("dragleave", (event) => event.relatedTarget === null && drop.classList.remove("over"));
  document.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    take(event.dataTransfer.files);
  });
  document.addEventListener("paste", (event) => take(event.clipboardData?.files ?? []));
}
