// What the pages use of preact and htm.

import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export { render };
export { useEffect, useRef, useState } from "./vendor/hooks.js";
export const html = htm.bind(h);
