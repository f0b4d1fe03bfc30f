/** Templates: `html` makes Preact nodes. What stands in `${…}` becomes text or an attribute, never markup. */

import htm from "./vendor/htm.js";
import { h } from "./vendor/preact.js";

export const html = htm.bind(h);
