// Makes an element's content like some HTML, and touches only what differs: focus, selected text and what was
// folded open stay.

export function morph(element, html) {
  const wanted = new DOMParser().parseFromString(html, "text/html").body;
  children(element, wanted);
}

function children(now, wanted) {
  const old = [...now.childNodes];
  const next = [...wanted.childNodes];
  next.forEach((node, at) => {
    const there = old[at];
    if (there === undefined) now.append(document.importNode(node, true));
    else same(there, node) ? become(there, node) : there.replaceWith(document.importNode(node, true));
  });
  old.slice(next.length).forEach((node) => node.remove());
}

function same(one, other) {
  return one.nodeType === other.nodeType && one.nodeName === other.nodeName && (one.id ?? "") === (other.id ?? "");
}

function become(now, wanted) {
  if (now.nodeType !== Node.ELEMENT_NODE) {
    if (now.nodeValue !== wanted.nodeValue) now.nodeValue = wanted.nodeValue;
    return;
  }
  if (now.isEqualNode(wanted)) return;
  for (const { name } of [...now.attributes]) {
    if (!wanted.hasAttribute(name) && !(name === "open" && now.nodeName === "DETAILS")) now.removeAttribute(name);
  }
  for (const { name, value } of wanted.attributes) {
    if (now.getAttribute(name) !== value) now.setAttribute(name, value);
  }
  children(now, wanted);
}
