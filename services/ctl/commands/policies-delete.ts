import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';

import type { Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { POLICY_NAME } from '../resources/policies.js';
import { RESOURCE_VERSION } from './pool-options.js';

export const policiesDelete: Verb = {
  name: 'policies delete',
  about: 'delete a request policy; what no other policy has a rule for is allowed from then on',
  positionals: [POLICY_NAME],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json }) => {
    const name = input.at(POLICY_NAME);
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const answer = await ipam.call(RequestPolicyServiceService.deleteRequestPolicy, { name, resourceVersion });
    return {
      sections: [sentence(`request policy ${name} is gone`)],
      data: () => json.of(RequestPolicyServiceService.deleteRequestPolicy, answer),
    };
  },
};
