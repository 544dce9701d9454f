// Elements made by code. Text goes in as text nodes alone: nothing that a model says is read as markup.

export const byId = (id) => document.getElementById(id);

/** An element with properties (or attributes, where it has no such property) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Says in the form itself why a field cannot be used; an empty sentence takes that back. */
export function objectTo(field, sentence) {
  field.setCustomValidity(sentence);
  field.setAttribute("aria-invalid", String(sentence !== ""));
}

/** A field's text as JSON, or undefined and an objection where it is none. */
export function jsonOf(field) {
  try {
    const value = JSON.parse(field.value);
    objectTo(field, "");
    return value;
  } catch (error) {
    objectTo(field, `This is not JSON: ${error.message}`);
    return undefined;
  }
}
