// Upgrade from the former release and back, while pods run, ping each other, and change. Run by `--former-image` and
// `--former-manifests`.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { ROOT } from './guide.mjs';
import { PodLoad, QUIET_MS } from './pod-load.mjs';
import { sleep } from './wait.mjs';

/** The commands below "Upgrade" in the changelog's latest section. */
function commandsOfChangelog() {
  const [, text] = readFileSync(join(ROOT, 'CHANGELOG.md'), 'utf8').split('**Upgrade.**');
  return /```console\n([^`]*)```/.exec(text)[1].trim().split('\n');
}

async function upgrade({ podwire, controlPlane }) {
  await podwire.installByManifests();
  for (const command of commandsOfChangelog()) await controlPlane.shell(command);
  await sleep(QUIET_MS);
}

/** Pods keep addresses and traffic, and nothing of either release is left. */
export async function formerRelease({ cluster, namespace }) {
  const { podwire } = cluster;
  const load = new PodLoad(cluster, namespace);
  const downgrade = async () => {
    await podwire.installFormer();
    await sleep(QUIET_MS);
  };
  await podwire.installFormer();
  await cluster.nodesReady();
  await load.start();
  await load.measure('upgrade', () => upgrade(cluster));
  await load.settle('after the upgrade');
  await load.measure('downgrade', async () => {
    await podwire.stopLeasing();
    await downgrade();
  });
  await load.settle('after the downgrade');
  await load.measure('second upgrade', () => upgrade(cluster));
  await load.settle('after the second upgrade');
  await load.measure('downgrade with leases', downgrade);
  await load.expectRecorded();
  await podwire.freeLeases();
  await load.settle('after the downgrade with leases');
  await load.stop();
  await load.expectAllFree();
}
