import { html } from '../lib.js';
import { Page } from '../parts.js';
export default () => html`<${Page} title="workers"><//>`;
