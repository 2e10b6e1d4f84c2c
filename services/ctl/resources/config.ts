import { ConfigServiceService, type Config, type UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { Failure } from '@podwire/shared/failure/failure';

import { DURATION_MS, wholeNumber, YES_OR_NO, type Form } from '../command-line/forms.js';
import { RESOURCE_VERSION } from '../command-line/options.js';
import type { Option, Verb } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';

const STRICT: Option<boolean> = {
  name: '--strict-affinity',
  form: YES_OR_NO,
  about: 'whether nodes allocate from their own blocks only',
};
const AUTO: Option<boolean> = {
  name: '--auto-allocate-blocks',
  form: YES_OR_NO,
  about: 'whether nodes claim blocks on demand; false requires strict affinity',
};
const MAX_BLOCKS: Option<number> = {
  name: '--max-blocks-per-node',
  form: wholeNumber('NUMBER', { min: 0, max: 1_000_000 }),
  about: 'maximum number of blocks per node and family, 0 for no limit; above 0 requires strict affinity',
};

/** A duration, or 0, which other durations may not be. */
const COOLDOWN_FORM: Form<number> = {
  placeholder: DURATION_MS.placeholder,
  read: (input) => (/^0s?$/.test(input) ? { ok: true, value: 0 } : DURATION_MS.read(input)),
};

const COOLDOWN: Option<number> = {
  name: '--cooldown',
  form: COOLDOWN_FORM,
  about: 'time before a released address may be allocated again, 0s to 20m',
};

const SECOND_MS = 1000;

export const configSet: Verb = {
  name: 'config set',
  about: 'change settings of the cluster’s allocation; others stay unchanged',
  details: 'Applies from the next allocation; existing blocks and addresses stay.',
  options: [STRICT, AUTO, MAX_BLOCKS, COOLDOWN, RESOURCE_VERSION],
  examples: ['config set --strict-affinity true --max-blocks-per-node 4', 'config set --cooldown 30s'],
  run: async (input, { ipam, json }) => {
    const cooldownMs = input.get(COOLDOWN);
    const changes = {
      strictAffinity: input.get(STRICT),
      autoAllocateBlocks: input.get(AUTO),
      maxBlocksPerNode: input.get(MAX_BLOCKS),
      cooldownSeconds: cooldownMs === undefined ? undefined : Math.ceil(cooldownMs / SECOND_MS),
    };
    if (Object.values(changes).every((value) => value === undefined))
      throw new Failure('INVALID_REQUEST', 'no setting to change; see "podwirectl config set --help"');
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const request: UpdateConfigRequest = { ...changes, resourceVersion };
    const answer = await ipam.call(ConfigServiceService.updateConfig, request);
    return {
      sections: answer.config ? [configFields(answer.config)] : [],
      data: () => json.of(ConfigServiceService.updateConfig, answer),
    };
  },
};

export const configGet: Verb = {
  name: 'config get',
  about: 'the settings of the cluster’s allocation',
  run: async (_, { ipam, json }) => {
    const answer = await ipam.call(ConfigServiceService.getConfig, {});
    return {
      sections: answer.config ? [configFields(answer.config)] : [],
      data: () => json.of(ConfigServiceService.getConfig, answer),
    };
  },
};

function configFields(config: Config): Fields {
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds, resourceVersion, stored } = config;
  return {
    kind: 'fields',
    fields: [
      ['strict-affinity', String(strictAffinity)],
      ['auto-allocate-blocks', String(autoAllocateBlocks)],
      ['max-blocks-per-node', maxBlocksPerNode === 0 ? '0 (no limit)' : String(maxBlocksPerNode)],
      ['cooldown', `${cooldownSeconds}s`],
      ['Version', stored ? resourceVersion : 'none: the settings are the defaults'],
    ],
  };
}
