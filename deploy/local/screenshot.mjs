// `npm run screenshot`: the README's picture of the page, from a run of the demonstration.
import { spawn } from 'node:child_process';
import { join } from 'node:path';
import process from 'node:process';
import { createInterface } from 'node:readline';

import { chromium } from 'playwright-core';

import { ROOT } from './prepare.mjs';
import { browserPath, ensureBrowser } from './programs.mjs';

const PICTURE = join(ROOT, 'deploy', 'local', 'screenshot.png');
const SIZE = { width: 1200, height: 1000 };

/** Time for the first refused pod, in milliseconds. */
const TIMEOUT_MS = 60_000;

/** Starts the demonstration. @returns its process, and the page's link */
async function start() {
  const demonstration = spawn(process.execPath, [join(ROOT, 'deploy', 'local', 'start.mjs')], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  for await (const line of createInterface({ input: demonstration.stdout })) {
    const link = /live: (http:\S+)/.exec(line)?.[1];
    if (link !== undefined) return { demonstration, link };
  }
  throw new Error('npm start ended without a link to its page');
}

async function takePicture(browser, link) {
  const page = await browser.newPage({ viewport: SIZE, colorScheme: 'light', locale: 'en-GB' });
  await page.goto(link);
  await page.getByText('ADDRESS_REFUSED').first().waitFor({ timeout: TIMEOUT_MS });
  // The slowest is the first of all, which has little to do with later ones.
  await page.getByRole('button', { name: 'p90' }).click();
  await page.mouse.move(0, 0);
  await page.screenshot({ path: PICTURE, fullPage: true });
}

const missing = ensureBrowser();
if (missing) throw new Error(missing);
const { demonstration, link } = await start();
// The sandbox refuses root.
const browser = await chromium.launch({ executablePath: browserPath(), args: ['--no-sandbox'] });
try {
  await takePicture(browser, link);
} finally {
  await browser.close();
  demonstration.kill('SIGTERM');
}
process.stdout.write(`${PICTURE}\n`);
