#!/usr/bin/env python3
"""The manifests of `ltrain kube` against the schemas of Kubernetes and JobSet: every key is known, every value has the
type, the recipe comes back byte for byte. A key that is misspelt on purpose must be found. Ten seconds."""
# build: ltrain
# packages: kubeflow-trainer-api==2.3.0 kubernetes-validate==1.37.0 pyyaml
import argparse
import copy
import os
import subprocess
import sys

import kubernetes_validate
import yaml
from kubeflow_trainer_api import models

import measure

KUBERNETES = "1.37"


def differences(given, parsed, place):
    """Places of `given` that the typed model `parsed` does not have."""
    if isinstance(given, dict):
        if not isinstance(parsed, dict):
            return [place]
        return [d for k, v in given.items()
                for d in ([f"{place}.{k}"] if k not in parsed else differences(v, parsed[k], f"{place}.{k}"))]
    if isinstance(given, list):
        if not isinstance(parsed, list) or len(given) != len(parsed):
            return [place]
        return [d for i, v in enumerate(given) for d in differences(v, parsed[i], f"{place}[{i}]")]
    return [] if str(given) == str(parsed) else [place]


def job_set_faults(job_set):
    """Places that JobSet's models, and Kubernetes' schema of the Job in it, do not take."""
    try:
        parsed = models.JobsetV1alpha2JobSet.from_dict(copy.deepcopy(job_set)).to_dict()
    except Exception as e:  # pydantic's
        return [str(e)]
    faults = differences(job_set, parsed, "jobset")
    for job in job_set["spec"]["replicatedJobs"]:
        whole = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, "spec": job["template"]["spec"]}
        try:
            kubernetes_validate.validate(whole, KUBERNETES, strict=True)
        except Exception as e:
            faults.append(str(e).splitlines()[0])
    return faults


def manifests(o, *options):
    command = [o.binary, "kube", o.recipe, "--image", "registry/ltrain:0.1", "--claim", "work", *options]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def main():
    a = argparse.ArgumentParser(description=__doc__)
    a.add_argument("--binary", default=os.path.join(measure.REPOSITORY, "build", "ltrain"))
    a.add_argument("--recipe", default=os.path.join(measure.REPOSITORY, "recipes", "quickstart.yaml"))
    o = a.parse_args()
    cases = [[], ["--nodes", "2", "--ranks-per-node", "1"], ["--namespace", "team", "--max-restarts", "0", 'output_dir=runs/it"s: #1']]
    for options in cases:
        secret, config, job_set = manifests(o, *options)
        for document in (secret, config):
            kubernetes_validate.validate(document, KUBERNETES, strict=True)
        with open(o.recipe) as f:
            if config["data"]["recipe.yaml"] != f.read():
                sys.exit("the recipe in the ConfigMap has other bytes than the file")
        faults = job_set_faults(job_set)
        if faults:
            sys.exit("\n".join(faults))
        # The check itself: each misspelt key is found.
        for path in (["network", "enableDNSHostname"], ["failurePolicy", "maxRestart"]):
            broken = copy.deepcopy(job_set)
            broken["spec"][path[0]][path[1]] = True
            if not job_set_faults(broken):
                sys.exit(f"a misspelt key was not found: {'.'.join(path)}")
        broken = copy.deepcopy(job_set)
        broken["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["arg"] = []
        if not job_set_faults(broken):
            sys.exit("a misspelt key of a container was not found")
    print(f"{len(cases)} manifests: as JobSet's models and the schemas of Kubernetes {KUBERNETES} say")


if __name__ == "__main__":
    main()
