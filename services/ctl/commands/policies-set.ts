import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Failure } from '@podwire/shared/failure/failure';

import type { Verb } from '../command-line/verb.js';
import { POLICY_NAME, POLICY_OPTIONS, policyFields, policyOf } from '../resources/policies.js';
import { RESOURCE_VERSION } from './pool-options.js';

const { createRequestPolicy, updateRequestPolicy } = RequestPolicyServiceService;

export const policiesSet: Verb = {
  name: 'policies set',
  about: 'create a request policy, or replace everything in it',
  details:
    'It holds from the next ADD on; what pods have stays theirs. "Nobody, but this team" is two policies: one about all\nnamespaces that allows nothing, and one about the team’s.',
  positionals: [POLICY_NAME],
  options: [...POLICY_OPTIONS, RESOURCE_VERSION],
  examples: [
    'policies set closed --none-of pools --none-of addresses',
    'policies set tenants --namespace red --pool second --address 10.65.0.0/28',
  ],
  run: async (input, { ipam, json }) => {
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const requestPolicy = policyOf(input, input.at(POLICY_NAME), resourceVersion);
    try {
      const answer = await ipam.call(updateRequestPolicy, { requestPolicy });
      return { sections: policyFields(answer.requestPolicy), data: () => json.of(updateRequestPolicy, answer) };
    } catch (error) {
      // Who names a version means one that is there.
      const isMissing = error instanceof Failure && error.code === 'REQUEST_POLICY_NOT_FOUND';
      if (!isMissing || resourceVersion !== '') throw error;
      const answer = await ipam.call(createRequestPolicy, { requestPolicy });
      return { sections: policyFields(answer.requestPolicy), data: () => json.of(createRequestPolicy, answer) };
    }
  },
};
