import { RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';

import type { Verb } from '../command-line/verb.js';
import { POLICY_NAME, policyFields } from '../resources/policies.js';

export const policiesShow: Verb = {
  name: 'policies show',
  about: 'everything about one request policy',
  positionals: [POLICY_NAME],
  run: async (input, { ipam, json }) => {
    const answer = await ipam.call(RequestPolicyServiceService.getRequestPolicy, { name: input.at(POLICY_NAME) });
    return {
      sections: policyFields(answer.requestPolicy),
      data: () => json.of(RequestPolicyServiceService.getRequestPolicy, answer),
    };
  },
};
