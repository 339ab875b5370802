// Chromium, and pages that remember everything that went wrong on them.

import { chromium } from "playwright-core";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

export const launch = (...flags) =>
  chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: [...FLAGS, ...flags] });

/** Opens a page of the admin port. `page.trouble` holds console errors and requests to other origins. */
export async function open(browser, admin, hash = "", options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  const page = await context.newPage();
  page.trouble = [];
  watch(page, admin);
  await page.goto(`${admin}/${hash}`);
  return page;
}

/** Remembers console errors, exceptions and requests to other origins. */
export function watch(page, admin) {
  page.on("console", (message) => {
    // The browser itself reports a connection that is refused, as it is while the proxy restarts.
    const isRefused = /net::ERR_(CONNECTION|INCOMPLETE|EMPTY)|status of (401|503)/.test(message.text());
    if (["error", "warning"].includes(message.type()) && !isRefused) page.trouble.push(message.text());
  });
  page.on("pageerror", (error) => page.trouble.push(error.message));
  page.on("request", (request) => {
    const { origin, protocol } = new URL(request.url());
    if (origin !== new URL(admin).origin && protocol !== "blob:") page.trouble.push(`request to ${request.url()}`);
  });
}

export const isLive = (page) => page.locator('#state[data-state="live"]').waitFor();
