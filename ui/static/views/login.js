// The login page.
import { html, useState } from '../lib.js';
import { logIn, loginReason, explain } from '../api.js';

export function Login() {
  const [error, setError] = useState(''), [busy, setBusy] = useState(false);
  const submit = async e => {
    e.preventDefault();
    const f = new FormData(e.currentTarget);
    setBusy(true);
    setError('');
    try {
      await logIn(String(f.get('key')).trim(), f.get('read_only') === 'on');
    } catch (problem) {
      setError(problem.status === 401 ? 'This key is not valid. It may have expired, or was revoked.'
        : explain(problem));
    } finally {
      setBusy(false);
    }
  };
  return html`<main class="login"><form class="card" onSubmit=${submit}>
    <svg viewBox="0 0 32 32" width="40" height="40" aria-hidden="true">
      <rect width="32" height="32" rx="7" fill="var(--accent)" />
      <path d="M7 21h8M17 21h2.500M21.500 21h1.500" stroke="var(--accent-ink)" stroke-width="3" stroke-linecap="round"
        opacity=".6" /><path d="M7 12h18" stroke="var(--accent-ink)" stroke-width="3" stroke-linecap="round" /></svg>
    <h1>Perdure</h1><p class="sub">Timeouts stop waiting, not working.</p>
    ${loginReason.value && html`<p class="trouble" role="alert">${loginReason.value}</p>`}
    <label class="field"><span>Key</span>
      <input name="key" type="password" required autocomplete="current-password" autofocus
      spellcheck="false" placeholder="prd_…" aria-invalid=${error ? 'true' : undefined}
        aria-describedby="login-help" /></label>
    ${error && html`<p class="trouble" role="alert">${error}</p>`}
    <label class="check"><input type="checkbox" name="read_only" /> <span>Look only, change nothing</span></label>
    <button type="submit" class="primary wide" disabled=${busy}>${busy ? 'Logging in' : 'Log in'}</button>
    <div class="sub" id="login-help"><p>A link that logs in once:</p><pre class="text">perdure dashboard</pre>
      <p>The first key is in the server's folder:</p>
      <pre class="text">cat perdure-data/admin.key</pre>
    <p>A key for looking only:</p><pre class="text">perdure keys create me --scopes runs:read</pre></div>
  </form></main>`;
}
