// What is shown stands in the address behind the #, so that every view can be linked to and the browser's back button works.

export function link() {
  return new URLSearchParams(location.hash.slice(1));
}

// The address with some parameters changed; null takes one away. `only`: those that stay of the others.
export function linked(changes, only = null) {
  const params = only === null ? link() : new URLSearchParams([...link()].filter(([name]) => only.includes(name)));
  for (const [name, value] of Object.entries(changes)) {
    params.delete(name);
    for (const one of [value].flat()) if (one !== null && one !== undefined && one !== "") params.append(name, one);
  }
  return `#${params}`;
}

export function go(changes, only = null) {
  location.hash = linked(changes, only);
}

// The same without a new entry in the history.
export function note(changes) {
  history.replaceState(null, "", linked(changes));
}
