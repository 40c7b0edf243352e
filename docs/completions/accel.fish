# Written by scripts/generate_docs.sh from the tables of flags. Do not edit it.
function __accel_is
    set -l words (commandline -opc)
    test "$words[2]" = $argv[1]
end
function __accel_is_alone
    test (count (commandline -opc)) -eq 1
end
# The first argument: how many words come before flags; the others: flags with a value.
function __accel_has_script
    set -l words (commandline -opc)
    set -l is_value no
    set -e words[1..$argv[1]]
    for word in $words
        if test $is_value = yes
            set is_value no
        else if not string match -q -- '-*' $word
            return 0
        else if contains -- (string replace -a -- - _ $word) $argv[2..-1]
            set is_value yes
        end
    end
    return 1
end
complete -c accel -n __accel_is_alone -f
complete -c accel -n __accel_is_alone -a launch -d 'start workers on this machine (accel-launch)'
complete -c accel -n __accel_is_alone -a completion -d 'the script with which a shell completes these commands'
complete -c accel -n __accel_is_alone -a config -d 'ask how you train, and write a configuration file'
complete -c accel -n __accel_is_alone -a env -d 'what is installed on this machine, for a bug report'
complete -c accel -n __accel_is_alone -a estimate-memory -d 'what a model takes, from its files or its config.json'
complete -c accel -n __accel_is_alone -a export -d 'write a model of Python as a file that trains without Python'
complete -c accel -n __accel_is_alone -a merge-weights -d 'make one model.safetensors of a sharded checkpoint'
complete -c accel -n __accel_is_alone -a test -d 'see whether workers of this set-up can train together'
complete -c accel -n __accel_is_alone -a to-fsdp2 -d 'write an FSDP 1 configuration as one of FSDP 2'
complete -c accel -n __accel_is_alone -a tpu-config -d 'run commands on all workers of a TPU pod, through gcloud'
complete -c accel -n __accel_is_alone -a train -d 'train an exported model on files, without Python'
complete -c accel -n __accel_is_alone -a run -d 'submit a job to the agent of this machine and follow it'
complete -c accel -n __accel_is_alone -a status -d 'the jobs of an agent, or one job'
complete -c accel -n __accel_is_alone -a logs -d 'what the workers of a job wrote'
complete -c accel -n __accel_is_alone -a stop -d 'stop a job'
complete -c accel -n __accel_is_alone -a signal -d 'send a signal to the workers of a job'
complete -c accel -n __accel_is_alone -a scale -d 'change how many nodes a job has'
complete -c accel -n __accel_is_alone -a diagnose -d 'where the workers of a job stand'
complete -c accel -n __accel_is_alone -a ledger -d 'where the time of a job went'
complete -c accel -n __accel_is_alone -a watch -d 'each change of a job, or of all'
complete -c accel -n __accel_is_alone -a drain -d 'let the node start no more jobs'
complete -c accel -n __accel_is_alone -a undrain -d 'let it start jobs again'
function __accel_is_before_script_of_launch
    not __accel_has_script 2 __config_file __num_processes __num_machines __machine_rank __main_process_ip __main_process_port __role __mpirun_hostfile __gpu_ids __mixed_precision __num_cpu_threads_per_process __dynamo_backend __dynamo_mode __log_dir __tee _t __redirects _r __log_rotate_bytes __log_keep __log_overflow __max_restarts __monitor_interval __stop_grace __hang_timeout __preflight __preflight_seconds __linger __aws_access_key_id __aws_secret_access_key __nnodes __rdzv_endpoint __rdzv_id __node_id __rdzv_token_file __rdzv_tls_dir __rdzv_dir __rdzv_join_timeout __rdzv_last_call_timeout __fencing __lease __main_training_function __tpu_name __vm __env __nproc_per_node __node_rank __master_addr __master_port __rdzv_backend __rdzv_conf __local_addr __local_ranks_filter __duplicate_stdout_filters __duplicate_stderr_filters __numa_binding __signals_to_handle __event_log_handler __logs_specs __start_method __fsdp_version __fsdp_sharding_strategy __fsdp_reshard_after_forward __fsdp_auto_wrap_policy __fsdp_transformer_layer_cls_to_wrap __fsdp_min_num_params __fsdp_backward_prefetch __fsdp_forward_prefetch __fsdp_state_dict_type __fsdp_offload_params __fsdp_use_orig_params __fsdp_cpu_ram_efficient_loading __fsdp_sync_module_states __fsdp_activation_checkpointing __fsdp_activation_checkpointing_offload __fsdp_ignored_modules __fsdp_max_live_bytes __deepspeed_config_file __zero_stage __offload_optimizer_device __offload_param_device __offload_optimizer_nvme_path __offload_param_nvme_path __gradient_accumulation_steps __gradient_clipping __zero3_init_flag __zero3_save_16bit_model __deepspeed_moe_layer_cls_names __deepspeed_hostfile __deepspeed_exclusion_filter __deepspeed_inclusion_filter __deepspeed_multinode_launcher __megatron_lm_tp_degree __megatron_lm_pp_degree __megatron_lm_num_micro_batches __megatron_lm_decoder_last_pipeline_num_layers __megatron_lm_sequence_parallelism __megatron_lm_recompute_activations __megatron_lm_recompute_granularity __megatron_lm_recompute_method __megatron_lm_recompute_num_layers __megatron_lm_use_distributed_optimizer __megatron_lm_gradient_clipping __megatron_lm_attention_backend __megatron_lm_expert_model_parallel_size __megatron_lm_context_parallel_size __megatron_lm_expert_tensor_parallel_size __megatron_lm_attention_dropout __megatron_lm_hidden_dropout __megatron_lm_attention_softmax_in_fp32 __megatron_lm_calculate_per_token_loss __megatron_lm_use_rotary_position_embeddings __megatron_lm_use_custom_fsdp __megatron_lm_no_load_optim __megatron_lm_no_save_optim __megatron_lm_eod_mask_loss __megatron_lm_optimizer_cpu_offload __megatron_lm_use_precision_aware_optimizer __megatron_lm_overlap_cpu_optimizer_d2h_h2d __parallelism_config_dp_replicate_size __parallelism_config_dp_shard_size __parallelism_config_tp_size __parallelism_config_cp_size __parallelism_config_cp_backend __parallelism_config_cp_comm_strategy __parallelism_config_sp_size __parallelism_config_sp_backend __parallelism_config_sp_seq_length __parallelism_config_sp_seq_length_is_variable __parallelism_config_sp_attn_implementation __fp8_backend __fp8_margin __fp8_interval __fp8_format __fp8_amax_history_len __fp8_amax_compute_algo __fp8_override_linear_precision __fp8_opt_level __fp8_enable_fsdp_float8_all_gather __fp8_pad_inner_dim __fp8_use_mxfp8_block_scaling
end
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l help -s h -d 'Show the flags that most need, of GROUP with --help GROUP, or with --help all.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l version -d 'Show the version.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l config_file -r -F -d 'Configuration in YAML, or JSON when it ends in .json. Without it the default file is read if it exists: $HF_HOME/accelerate/default_config.yaml.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dry_run -d 'Show what would be started, and start nothing.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l quiet -s q -d 'No warnings and no report of a failure.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l debug -d 'Workers check the shapes of their collectives over all ranks.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l strict -d 'Warnings about the configuration file are errors: keys that are given twice, that are unknown to their section, or of older versions.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l strict_compat -d 'Give workers the variables that accelerate launch and torchrun give them, also where others are better (OMP_NUM_THREADS, KMP_AFFINITY), and hand a -- after SCRIPT on.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l module -s m -d 'SCRIPT is a Python module, as with python -m.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l no_python -d 'SCRIPT is a program, also one on PATH; never run it with Python.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l num_processes -x -d 'Number of workers, of all machines together. Default: of the configuration, else one for each visible GPU, else 1 on each machine.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l num_machines -x -d 'Number of machines; each runs its own accel-launch. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l machine_rank -x -d 'Rank of this machine. Machine 0 has the store. Default: 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l main_process_ip -x -d 'Address of machine 0. With one machine the store always listens on 127.0.0.1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l main_process_port -x -d 'Port of the store; 0, or one that is taken, gives a free one. Default: 29500 when it is free, else any; with several machines 29500.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l role -x -d 'Value of ROLE_NAME. Default: default.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l mpirun_hostfile -r -F -d 'Let mpirun start the workers, on the hosts of this file; its form is that of the mpirun that is installed (Open MPI, Intel MPI, MVAPICH). --num_processes and --num_machines count all of them.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l cpu -d 'Train on the CPU although there are GPUs.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l multi_gpu -d 'Train on the GPUs of this machine; needs two.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l gpu_ids -x -d 'GPUs that the workers may use, as in 0,1; or all. Sets CUDA_VISIBLE_DEVICES.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l mixed_precision -x -a 'no fp16 bf16 fp8' -d 'Mixed precision of the workers. Programs of libaccel refuse fp8. Default: no.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l num_cpu_threads_per_process -x -d 'OMP_NUM_THREADS of every worker. Default: what is set already, else the physical cores divided by the workers.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l enable_cpu_affinity -d 'Bind every worker to physical cores of its own, close to one memory.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dynamo_backend -x -a 'no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt aot_torchxla_trace_once torhchxla_trace_once tvm' -d 'Default: no.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dynamo_mode -x -a 'default reduce-overhead max-autotune' -d 'Default: default.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dynamo_use_fullgraph -d 'Compile whole graphs only.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dynamo_use_dynamic -d 'Trace with dynamic shapes.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l dynamo_use_regional_compilation -d 'Compile repeated blocks once.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_dir -r -F -d 'Write the streams of every rank to files below DIR, byte for byte (and to the console, unless redirected).'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l tee -s t -x -d 'Streams that go to a file and the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,1:1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l redirects -s r -x -d 'Streams that go to a file only; the same form.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_prefix -d 'Begin console lines with the rank and the stream.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_rotate_bytes -x -d 'Begin a new log file when one has so many bytes, as 256M; 0: never. Default: 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_keep -x -d 'Full log files of each stream that stay, the newest ones. Default: 8.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_overflow -x -a 'block drop sample' -d 'Output that a file or the console does not take as fast as it comes: block lets the worker wait, drop drops it, sample drops it but for lines here and there. Default: block.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l log_merge_stderr -d 'Make stdout and stderr of every rank one stream, stdout, so that their order is kept.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l no_pty -d 'Never give rank 0 a terminal.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l max_restarts -x -d 'How often all workers are started again after one has failed. Default: 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l monitor_interval -x -d 'Accepted for torchrun\'s sake: the end of a worker is an event here, seen at once.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l stop_grace -x -d 'From the signal that asks workers to stop until SIGKILL, as in 30, 500ms or 2m. Default: 30.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l hang_timeout -x -d 'When a worker that reports its steps (libaccel does) counts as hung: auto is three times the longest usual step, at least 30 s; or a time as in 600 or 10m. Default: off.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l preflight -x -d 'A check that every node runs before workers start, in /bin/sh; may be given several times. A node whose check does not end with 0 does not take part.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l preflight_seconds -x -d 'How long each check of --preflight may take. Default: 30.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l stop_with_stdin -d 'Stop the job when standard input ends, as when the ssh that started this launcher is gone. Workers have nothing to read then.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l linger -x -d 'How long processes that a finished rank left behind may live. Default: 10.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l aws_access_key_id -x -d 'Of the account, where the configuration file names no profile of AWS.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l aws_secret_access_key -x -d 'Belongs to it. Others may see command lines: a profile, or AWS_SECRET_ACCESS_KEY in the environment, is better.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l nnodes -x -d 'Nodes of the job, as 4 or 2:4; inside SLURM by default those of the allocation. With a range --nproc_per_node says how many workers each has.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l agent -d 'Give the job to the agent of this machine and follow it; the agents find the nodes and keep the output. The agent is that of $ACCEL_AGENT, else of /run/accel.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_endpoint -x -d 'Where the nodes meet, an address or a name; the launcher whose it is hosts the coordinator. With a fixed number of nodes and no --rdzv_token_file it is --main_process_ip and its port, and ranks come in the order of joins. With --rdzv_backend c10d, a range of nodes and no token, whoever reaches it is trusted.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_id -x -d 'The job\'s id, the same on each node. Default: job; without a daemon none.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l node_id -x -d 'This node\'s id. Default: the host\'s name and the launcher\'s pid; inside SLURM its node\'s name.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_token_file -r -F -d 'File of mode 0600 with the job\'s token, the same on each node.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_tls_dir -r -F -d 'Folder with ca.pem, cert.pem and key.pem of this node, as `accel-agent init-tls` makes it.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_insecure -d 'No TLS; loopback addresses only.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_dir -r -F -d 'Inside SLURM: a folder that all nodes see, for the job\'s key. Default: the working folder.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_join_timeout -x -d 'How long to wait for the nodes. Default: 600.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_last_call_timeout -x -d 'With MIN:MAX, how long to wait for more nodes once MIN are there. Default: 3.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fencing -x -a 'soft hard' -d 'Whether a node that is cut off must be dead before the others go on: soft, at once; hard, its workers are killed when its lease is over, and the others wait for that. Default: soft.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l lease -x -d 'How long workers run on without an answer from the coordinator, with --fencing hard. Default: 10.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l tpu -d 'Start a function of a Python script on each core of the TPUs of this machine, by torch_xla.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l main_training_function -x -d 'The function. Default: main.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l downcast_bf16 -d 'With --mixed_precision bf16: float becomes bfloat16 and double float; else both bfloat16.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l tpu_cluster -d 'On all machines of a pod, through torch_xla\'s xla_dist. Needs --tpu_name.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l no_tpu_cluster -d 'This machine alone, as by default.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l tpu_name -x -d 'The pod of --tpu_cluster.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l tpu_use_sudo -d 'Use sudo on the machines of the pod.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l vm -x -d 'A virtual machine of the pod; may be given several times. Default: its instance groups.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l env -x -d 'A variable for the machines of the pod; may be given several times.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l nproc_per_node -x -d 'Workers on this node: a number; one for each granted hardware thread (cpu), for each visible GPU (gpu), or for each GPU if there are any, else for each thread (auto).'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l node_rank -x -d 'As --machine_rank.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l master_addr -x -d 'As --main_process_ip.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l master_port -x -d 'As --main_process_port.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l standalone -d 'One node, and a store on any free port, as --main_process_port 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_backend -x -a 'static c10d etcd etcd-v2' -d 'How nodes meet: at --master_addr with a --node_rank each (static), at --rdzv_endpoint (c10d), or at a node that the etcd at --rdzv_endpoint names (etcd, etcd-v2).'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l rdzv_conf -x -d 'join_timeout or timeout is --rdzv_join_timeout, last_call_timeout is --rdzv_last_call_timeout; for etcd, protocol=https with cacert, cert and key (files); other keys have no effect.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l run_path -d 'SCRIPT is run by Python\'s runpy.run_path().'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l local_addr -x -d 'By which others reach this node, with --rdzv_backend etcd. Else without effect: nodes see where calls come from.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l local_ranks_filter -x -d 'Only these local ranks write to the console, as in 0,1; the others to files alone.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l duplicate_stdout_filters -x -d 'Lines of teed stdout with one of the texts also go to filtered_stdout.log; \',,\' is a comma.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l duplicate_stderr_filters -x -d 'The same for stderr, to filtered_stderr.log.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l virtual_local_rank -d 'Each worker sees one GPU, its own, and LOCAL_RANK 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l numa_binding -x -a 'node socket exclusive core-complex' -d 'Bind every worker to the cores of a memory node, a package, to cores of its own, or to those that share a last cache.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l signals_to_handle -x -d 'Sets TORCHELASTIC_SIGNALS_TO_HANDLE. SIGTERM, SIGINT, SIGHUP and SIGQUIT always reach the workers.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l event_log_handler -x -d 'Has no effect: the report tells what happened, with an agent `accel ledger` too.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l logs_specs -x -d 'Has no effect: --log_dir, --tee and --redirects say where output goes.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l start_method -x -a 'spawn fork forkserver' -d 'Has no effect: workers are programs of their own.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l same_network -d 'Of accelerate launch; has no effect: machines meet at --main_process_ip.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l use_fsdp -d 'Divide model, gradients and optimizer over the workers.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_version -x -a '1 2' -d 'Version of FSDP. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_sharding_strategy -x -a 'FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2 1 2 3 4 5' -d 'Version 1: what is divided over the ranks. Default: FULL_SHARD.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_reshard_after_forward -x -a 'true false FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2' -d 'Version 2: divide parameters again after the forward pass. With version 1 it may name a strategy. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_auto_wrap_policy -x -a 'TRANSFORMER_BASED_WRAP SIZE_BASED_WRAP NO_WRAP' -d 'What forms a unit that is gathered and reduced together.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_transformer_layer_cls_to_wrap -x -d 'TRANSFORMER_BASED_WRAP: class names of the layers, separated by commas.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_min_num_params -x -d 'SIZE_BASED_WRAP: the fewest parameters of a unit. Default: 100000000.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_backward_prefetch -x -a 'BACKWARD_PRE BACKWARD_POST NO_PREFETCH' -d 'When the parameters of the next unit are fetched in the backward pass.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_forward_prefetch -x -a 'true false' -d 'Fetch the next unit during the forward pass. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_state_dict_type -x -a 'FULL_STATE_DICT LOCAL_STATE_DICT SHARDED_STATE_DICT' -d 'Who writes checkpoints: rank 0 whole tensors, or each rank its part.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_offload_params -x -a 'true false' -d 'Keep parameters and gradients in the memory of the CPU. Programs of libaccel refuse true. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_use_orig_params -x -a 'true false' -d 'Version 1: modules keep parameters of their own. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_cpu_ram_efficient_loading -x -a 'true false' -d 'Only rank 0 loads the model. Needs --fsdp_sync_module_states true. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_sync_module_states -x -a 'true false' -d 'All ranks begin with the values of rank 0. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_activation_checkpointing -x -a 'true false' -d 'Compute activations again in the backward pass. Programs of libaccel refuse true. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_activation_checkpointing_offload -x -a 'true false' -d 'Keep checkpointed activations in the memory of the CPU. Programs of libaccel refuse true. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_ignored_modules -x -d 'A regular expression of names: those modules are not divided.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fsdp_max_live_bytes -x -d 'FULL_SHARD over several machines: bytes of parameters that a worker keeps at once, as 512M or 2G. Default: three units.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l use_deepspeed -d 'Train with DeepSpeed; in programs of libaccel, with its stages of ZeRO.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_config_file -r -F -d 'DeepSpeed\'s own configuration, in JSON.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l zero_stage -x -a '0 1 2 3' -d 'Stage of ZeRO. Default, of the workers: 2.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l offload_optimizer_device -x -a 'none cpu nvme' -d 'Where optimizer states are kept, with stages 2 and 3. Programs of libaccel take only none.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l offload_param_device -x -a 'none cpu nvme' -d 'Where parameters are kept, with stage 3. Programs of libaccel take only none.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l offload_optimizer_nvme_path -r -F -d 'Folder for --offload_optimizer_device nvme.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l offload_param_nvme_path -r -F -d 'Folder for --offload_param_device nvme.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l gradient_accumulation_steps -x -a 'auto' -d 'Batches whose gradients are added before a step.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l gradient_clipping -x -a 'auto none' -d 'Largest norm of the gradients.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l zero3_init_flag -x -a 'true false' -d 'Stage 3: divide models while they are made.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l zero3_save_16bit_model -x -a 'true false' -d 'Stage 3: save whole models in 16 bits.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_moe_layer_cls_names -x -d 'Class names of layers of experts, separated by commas.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_hostfile -r -F -d 'Several machines: the hosts and their slots.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_exclusion_filter -x -d 'Several machines: hosts to leave out.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_inclusion_filter -x -d 'Several machines: hosts to take.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l deepspeed_multinode_launcher -x -a 'pdsh ssh standard openmpi mvapich mpich nossh slurm' -d 'Several machines: how they are reached.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l use_megatron_lm -d 'Train with Megatron-LM. Programs of libaccel refuse it.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_tp_degree -x -d 'Processes that divide each layer. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_pp_degree -x -d 'Stages that layers are divided into. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_num_micro_batches -x -d 'Micro batches of the pipeline.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_decoder_last_pipeline_num_layers -x -d 'Layers of the last stage.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_sequence_parallelism -x -a 'true false' -d 'Divide activations along the sequence too.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_recompute_activations -x -a 'true false' -d 'Compute activations again in the backward pass.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_recompute_granularity -x -a 'full selective' -d 'What of a layer is computed again.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_recompute_method -x -a 'uniform block' -d 'Which layers are computed again.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_recompute_num_layers -x -d 'How many layers are computed again together.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_use_distributed_optimizer -x -a 'true false' -d 'Divide optimizer states over copies.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_gradient_clipping -x -d 'Largest norm of the gradients; 0 never clips. Default: 1.0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_attention_backend -x -d 'Kernels of attention.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_expert_model_parallel_size -x -d 'Processes that divide experts.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_context_parallel_size -x -d 'Processes that divide sequences.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_expert_tensor_parallel_size -x -d 'Processes that divide each expert.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_attention_dropout -x -d 'Dropout of attention.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_hidden_dropout -x -d 'Dropout of hidden states.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_attention_softmax_in_fp32 -x -a 'true false' -d 'Compute the softmax of attention in fp32.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_calculate_per_token_loss -x -a 'true false' -d 'Divide the loss by tokens.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_use_rotary_position_embeddings -x -a 'true false' -d 'Rotary position embeddings.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_use_custom_fsdp -x -a 'true false' -d 'Megatron\'s own FSDP. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_no_load_optim -x -a 'true false' -d 'Leave the optimizer out of loading. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_no_save_optim -x -a 'true false' -d 'Leave the optimizer out of saving. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_eod_mask_loss -x -a 'true false' -d 'No loss for ends of documents. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_optimizer_cpu_offload -x -a 'true false' -d 'Keep optimizer states in the memory of the CPU. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_use_precision_aware_optimizer -x -a 'true false' -d 'Optimizer states in the precision they need. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l megatron_lm_overlap_cpu_optimizer_d2h_h2d -x -a 'true false' -d 'Copy to and from the CPU while computing. Default: false.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l use_parallelism_config -d 'Lay the workers out along several axes; needs --use_fsdp --fsdp_version 2. Programs of libaccel refuse axes that divide layers or sequences.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_dp_replicate_size -x -d 'Copies of the model. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_dp_shard_size -x -d 'Processes that divide a copy. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_tp_size -x -d 'Processes that divide each layer. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_cp_size -x -d 'Processes that divide each sequence, by context. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_cp_backend -x -a 'torch' -d 'Who divides by context. Default: torch.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_cp_comm_strategy -x -a 'allgather alltoall' -d 'How parts of a sequence are exchanged. Default: allgather.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_sp_size -x -d 'Processes that divide each sequence, by heads. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_sp_backend -x -a 'deepspeed' -d 'Who divides by heads. Default: deepspeed.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_sp_seq_length -x -d 'Length of the sequences, when they all have one.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_sp_seq_length_is_variable -x -a 'true false' -d 'Whether lengths of sequences differ. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l parallelism_config_sp_attn_implementation -x -a 'sdpa eager flash_attention_2 flash_attention_3' -d 'Kernels of attention. Default: sdpa.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_backend -x -a 'ao te msamp ms-amp' -d 'torchao, Transformer Engine or MS-AMP (deprecated).'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_use_autocast_during_eval -d 'te: fp8 also in evaluation.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_margin -x -d 'te: margin of the scaling factor. Default: 0.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_interval -x -d 'te: steps between scaling factors. Default: 1.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_format -x -a 'HYBRID E4M3 E5M2' -d 'te: the fp8 format. Default: HYBRID.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_amax_history_len -x -d 'te: steps that the largest value is looked for in. Default: 1024.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_amax_compute_algo -x -a 'max most_recent' -d 'te: which of them counts. Default: most_recent.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_override_linear_precision -x -d 'te: higher precision for the forward pass, the gradient of the input and that of the weight, as in false,false,true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_opt_level -x -a 'O1 O2' -d 'msamp: level of optimization. Default: O2.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_enable_fsdp_float8_all_gather -x -a 'true false' -d 'ao: FSDP version 2 gathers parameters in fp8. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_pad_inner_dim -x -a 'true false' -d 'ao: pad sizes to multiples of 16. Default: true.'
complete -c accel -n '__accel_is launch; and __accel_is_before_script_of_launch' -l fp8_use_mxfp8_block_scaling -x -a 'true false' -d 'te: a scaling factor for each block.'
complete -c accel -n '__accel_is completion' -l help -d 'Show this text.'
complete -c accel -n '__accel_is completion' -a 'bash zsh fish'
complete -c accel -n '__accel_is config' -l help -d 'Show this text.'
complete -c accel -n '__accel_is config' -l config_file -r -F -d 'where to write; without it $HF_HOME/accelerate/default_config.yaml, or the same below $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface; JSON when the name ends in .json'
complete -c accel -n '__accel_is config' -l mixed_precision -x -a 'no fp16 bf16' -d 'no, fp16 or bf16; no by default'
complete -c accel -n '__accel_is config' -a 'default update'
complete -c accel -n '__accel_is env' -l help -d 'Show this text.'
complete -c accel -n '__accel_is env' -l config_file -r -F -d 'the configuration to print, instead of the default one'
complete -c accel -n '__accel_is estimate-memory' -l help -d 'Show this text.'
complete -c accel -n '__accel_is estimate-memory' -l dtypes -x -d 'which rows the table has, of float32, float16, bfloat16, int8 and int4'
complete -c accel -n '__accel_is estimate-memory' -l library_name -x -a 'timm transformers' -d 'timm or transformers; changes nothing here'
complete -c accel -n '__accel_is estimate-memory' -l trust_remote_code -d 'changes nothing: no code of a model is run'
complete -c accel -n '__accel_is estimate-memory' -l json -d 'JSON, in bytes'
complete -c accel -n '__accel_is export' -l help -d 'Show this text.'
complete -c accel -n '__accel_is export' -l output -x -d 'the file to write, model.pt2'
complete -c accel -n '__accel_is export' -l task -x -a 'causal-lm masked-lm classification seq2seq image image-text' -d 'what a model of hf: is trained for: causal-lm, masked-lm, classification, seq2seq, image or image-text; its configuration says it where this is not given'
complete -c accel -n '__accel_is export' -l loss -x -a 'inside logits' -d 'inside: the model takes labels and gives its loss, which is the default; logits: it does not'
complete -c accel -n '__accel_is export' -l attention_mask -d 'the model takes a mask as well'
complete -c accel -n '__accel_is export' -l no_dropout -d 'all rates of dropout are 0'
complete -c accel -n '__accel_is export' -l random_weights -d 'random weights, and not those of the folder or name'
complete -c accel -n '__accel_is export' -l seed -x -d 'of the random weights; 0 by default'
complete -c accel -n '__accel_is export' -l trust_remote_code -d 'run Python code that comes with the model'
complete -c accel -n '__accel_is export' -l dynamic -x -d 'which sizes of the inputs may differ from the example: batch, sequence, or batch,sequence'
complete -c accel -n '__accel_is export' -l batch_size -x -d 'of the example; 2 by default'
complete -c accel -n '__accel_is export' -l sequence_length -x -d 'of the example; 64 by default'
complete -c accel -n '__accel_is export' -l weights -x -a 'inside beside' -d 'inside: in the file, which is the default; beside: in model.safetensors in its folder, as from_pretrained() reads them'
complete -c accel -n '__accel_is export' -l compile -x -a 'eval train' -d 'also write machine code of AOTInductor for the CPU of this machine: eval, of the graph of eval(); train, of the loss and its gradients; or eval,train. Needs a C++ compiler here'
complete -c accel -n '__accel_is export' -l python -x -d 'the Python to run; that of a launch where it is not given'
complete -c accel -n '__accel_is merge-weights' -l help -d 'Show this text.'
complete -c accel -n '__accel_is merge-weights' -l unsafe_serialization -d 'write pytorch_model.bin, a pickle as torch.save() writes it, instead of model.safetensors'
complete -c accel -n '__accel_is merge-weights' -l remove_checkpoint_dir -d 'remove the checkpoint when the result is on the disk'
complete -c accel -n '__accel_is test' -l help -d 'Show this text.'
complete -c accel -n '__accel_is test' -l config_file -r -F -d 'the configuration to test; the default one where it is not given'
complete -c accel -n '__accel_is test' -l strict -d 'warnings about the configuration are errors'
complete -c accel -n '__accel_is to-fsdp2' -l help -d 'Show this text.'
complete -c accel -n '__accel_is to-fsdp2' -l config_file -r -F -d 'the file to convert'
complete -c accel -n '__accel_is to-fsdp2' -l output_file -r -F -d 'where to write; with --overwrite alone, the file itself'
complete -c accel -n '__accel_is to-fsdp2' -l overwrite -d 'replace a file that exists'
complete -c accel -n '__accel_is tpu-config' -l help -d 'Show this text.'
complete -c accel -n '__accel_is tpu-config' -l config_file -r -F -d 'where to look for what is not given'
complete -c accel -n '__accel_is tpu-config' -l tpu_name -x -d 'the TPU'
complete -c accel -n '__accel_is tpu-config' -l tpu_zone -x -d 'its zone'
complete -c accel -n '__accel_is tpu-config' -l use_alpha -d '`gcloud alpha`'
complete -c accel -n '__accel_is tpu-config' -l command_file -r -F -d 'a file with a command on each line'
complete -c accel -n '__accel_is tpu-config' -l command -x -d 'commands; may be given several times'
complete -c accel -n '__accel_is tpu-config' -l install_accelerate -d 'pip install accelerate before'
complete -c accel -n '__accel_is tpu-config' -l accelerate_version -x -d 'which one: a version, latest or dev'
complete -c accel -n '__accel_is tpu-config' -l debug -d 'print the line that would run'
complete -c accel -n '__accel_is train' -l help -d 'Show this text.'
complete -c accel -n '__accel_is train' -l weights -x -d 'a .safetensors file with the values of its parameters'
complete -c accel -n '__accel_is train' -l task -x -a 'causal-lm classification' -d 'causal-lm: predict the next token; classification'
complete -c accel -n '__accel_is train' -l data -x -d 'files: tokens as .npy, .safetensors or .bin; text as .txt or .jsonl, with --tokenizer; rows or images to classify as .csv or .npy'
complete -c accel -n '__accel_is train' -l eval_data -x -d 'files of the same kind, to evaluate with'
complete -c accel -n '__accel_is train' -l sequence_length -x -d 'tokens of a sample'
complete -c accel -n '__accel_is train' -l label_column -x -d 'the column of a .csv with the class'
complete -c accel -n '__accel_is train' -l labels -x -d '.npy files with the classes, one for each .npy of --data'
complete -c accel -n '__accel_is train' -l eval_labels -x -d 'the same for --eval_data'
complete -c accel -n '__accel_is train' -l scale -x -d 'numbers of .npy to classify are divided by it'
complete -c accel -n '__accel_is train' -l mean -x -d 'taken off after that: one, or one for each channel'
complete -c accel -n '__accel_is train' -l std -x -d 'then the numbers are divided by it, as by --mean'
complete -c accel -n '__accel_is train' -l channels_last -d 'images of .npy are height, width, channels; the model takes channels first'
complete -c accel -n '__accel_is train' -l batch_size -x -d 'samples a batch and process'
complete -c accel -n '__accel_is train' -l no_shuffle -d 'take the samples in the order of the files'
complete -c accel -n '__accel_is train' -l num_workers -x -d 'threads that read ahead'
complete -c accel -n '__accel_is train' -l tokenizer -x -d 'a tokenizer.json: files of text become tokens, once, before workers start'
complete -c accel -n '__accel_is train' -l end_of_text -x -d 'the token behind each document, or none; else the tokenizer\'s own'
complete -c accel -n '__accel_is train' -l text_field -x -d 'the text in a line of .jsonl'
complete -c accel -n '__accel_is train' -l tokens_dir -r -F -d 'where tokens of texts are kept for the next run; else tokens in the project'
complete -c accel -n '__accel_is train' -l python -x -d 'with the library tokenizers; else the one of a launch'
complete -c accel -n '__accel_is train' -l num_epochs -x -d 'passes over the data'
complete -c accel -n '__accel_is train' -l max_steps -x -d 'stop after so many optimizer steps'
complete -c accel -n '__accel_is train' -l optimizer -x -a 'adamw adam sgd' -d 'adamw, adam or sgd'
complete -c accel -n '__accel_is train' -l lr -x -d 'the highest learning rate'
complete -c accel -n '__accel_is train' -l weight_decay -x -d 'of the optimizer'
complete -c accel -n '__accel_is train' -l schedule -x -a 'constant linear cosine' -d 'of the rate: constant, linear or cosine'
complete -c accel -n '__accel_is train' -l warmup_steps -x -d 'steps in which the rate rises from 0'
complete -c accel -n '__accel_is train' -l max_grad_norm -x -d 'clip gradients to it; 0: do not'
complete -c accel -n '__accel_is train' -l gradient_accumulation_steps -x -d 'batches of an optimizer step'
complete -c accel -n '__accel_is train' -l mixed_precision -x -d 'no, bf16 or fp16; else as the launcher was told'
complete -c accel -n '__accel_is train' -l fsdp -x -d 'FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2; else as the launcher was told'
complete -c accel -n '__accel_is train' -l seed -x -d 'of the order of samples and of dropout'
complete -c accel -n '__accel_is train' -l project_dir -r -F -d 'where checkpoints, metrics and the model go'
complete -c accel -n '__accel_is train' -l save_steps -x -d 'steps between two checkpoints'
complete -c accel -n '__accel_is train' -l eval_steps -x -d 'steps between two evaluations; 0: each epoch'
complete -c accel -n '__accel_is train' -l log_steps -x -d 'steps between two lines of metrics'
complete -c accel -n '__accel_is train' -l total_limit -x -d 'checkpoints that are kept'
complete -c accel -n '__accel_is train' -l memory_checkpoint_every -x -d 'steps between two checkpoints in the launcher\'s memory, for --max_restarts'
complete -c accel -n '__accel_is train' -l metrics_file -r -F -d 'a line of JSON for each, or of a table when it ends with .csv'
complete -c accel -n '__accel_is train' -l resume -d 'go on from the newest complete checkpoint'
complete -c accel -n '__accel_is train' -l overwrite -d 'delete the checkpoints of an earlier run'
complete -c accel -n '__accel_is train' -l config -x -d 'a YAML file of these flags; what is typed holds before it'
function __accel_is_before_script_of_run
    not __accel_has_script 2 __name __nnodes __num_processes __max_restarts __stop_grace __hang_timeout __log_rotate_bytes __log_keep __log_overflow __preflight __preflight_seconds __cwd __env __spec __agent __tls_dir __wait
end
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l name -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l nnodes -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l num_processes -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l max_restarts -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l stop-grace -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l hang_timeout -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l log_rotate_bytes -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l log_keep -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l log_overflow -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l log_merge_stderr
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l preflight -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l preflight_seconds -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l cwd -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l env -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l spec -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l detach
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l agent -x
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l tls-dir -r -F
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l insecure
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l json
complete -c accel -n '__accel_is run; and __accel_is_before_script_of_run' -l wait -x
complete -c accel -n '__accel_is status' -l agent -x
complete -c accel -n '__accel_is status' -l tls-dir -r -F
complete -c accel -n '__accel_is status' -l insecure
complete -c accel -n '__accel_is status' -l json
complete -c accel -n '__accel_is status' -l wait -x
complete -c accel -n '__accel_is logs' -l follow
complete -c accel -n '__accel_is logs' -l rank -x
complete -c accel -n '__accel_is logs' -l agent -x
complete -c accel -n '__accel_is logs' -l tls-dir -r -F
complete -c accel -n '__accel_is logs' -l insecure
complete -c accel -n '__accel_is logs' -l json
complete -c accel -n '__accel_is logs' -l wait -x
complete -c accel -n '__accel_is stop' -l kill
complete -c accel -n '__accel_is stop' -l agent -x
complete -c accel -n '__accel_is stop' -l tls-dir -r -F
complete -c accel -n '__accel_is stop' -l insecure
complete -c accel -n '__accel_is stop' -l json
complete -c accel -n '__accel_is stop' -l wait -x
complete -c accel -n '__accel_is signal' -l agent -x
complete -c accel -n '__accel_is signal' -l tls-dir -r -F
complete -c accel -n '__accel_is signal' -l insecure
complete -c accel -n '__accel_is signal' -l json
complete -c accel -n '__accel_is signal' -l wait -x
complete -c accel -n '__accel_is scale' -l agent -x
complete -c accel -n '__accel_is scale' -l tls-dir -r -F
complete -c accel -n '__accel_is scale' -l insecure
complete -c accel -n '__accel_is scale' -l json
complete -c accel -n '__accel_is scale' -l wait -x
complete -c accel -n '__accel_is diagnose' -l agent -x
complete -c accel -n '__accel_is diagnose' -l tls-dir -r -F
complete -c accel -n '__accel_is diagnose' -l insecure
complete -c accel -n '__accel_is diagnose' -l json
complete -c accel -n '__accel_is diagnose' -l wait -x
complete -c accel -n '__accel_is ledger' -l agent -x
complete -c accel -n '__accel_is ledger' -l tls-dir -r -F
complete -c accel -n '__accel_is ledger' -l insecure
complete -c accel -n '__accel_is ledger' -l json
complete -c accel -n '__accel_is ledger' -l wait -x
complete -c accel -n '__accel_is watch' -l agent -x
complete -c accel -n '__accel_is watch' -l tls-dir -r -F
complete -c accel -n '__accel_is watch' -l insecure
complete -c accel -n '__accel_is watch' -l json
complete -c accel -n '__accel_is watch' -l wait -x
complete -c accel -n '__accel_is drain' -l reason -x
complete -c accel -n '__accel_is drain' -l stop
complete -c accel -n '__accel_is drain' -l agent -x
complete -c accel -n '__accel_is drain' -l tls-dir -r -F
complete -c accel -n '__accel_is drain' -l insecure
complete -c accel -n '__accel_is drain' -l json
complete -c accel -n '__accel_is drain' -l wait -x
complete -c accel -n '__accel_is undrain' -l agent -x
complete -c accel -n '__accel_is undrain' -l tls-dir -r -F
complete -c accel -n '__accel_is undrain' -l insecure
complete -c accel -n '__accel_is undrain' -l json
complete -c accel -n '__accel_is undrain' -l wait -x
function __accel_is_before_script
    not __accel_has_script 1 __config_file __num_processes __num_machines __machine_rank __main_process_ip __main_process_port __role __mpirun_hostfile __gpu_ids __mixed_precision __num_cpu_threads_per_process __dynamo_backend __dynamo_mode __log_dir __tee _t __redirects _r __log_rotate_bytes __log_keep __log_overflow __max_restarts __monitor_interval __stop_grace __hang_timeout __preflight __preflight_seconds __linger __aws_access_key_id __aws_secret_access_key __nnodes __rdzv_endpoint __rdzv_id __node_id __rdzv_token_file __rdzv_tls_dir __rdzv_dir __rdzv_join_timeout __rdzv_last_call_timeout __fencing __lease __main_training_function __tpu_name __vm __env __nproc_per_node __node_rank __master_addr __master_port __rdzv_backend __rdzv_conf __local_addr __local_ranks_filter __duplicate_stdout_filters __duplicate_stderr_filters __numa_binding __signals_to_handle __event_log_handler __logs_specs __start_method __fsdp_version __fsdp_sharding_strategy __fsdp_reshard_after_forward __fsdp_auto_wrap_policy __fsdp_transformer_layer_cls_to_wrap __fsdp_min_num_params __fsdp_backward_prefetch __fsdp_forward_prefetch __fsdp_state_dict_type __fsdp_offload_params __fsdp_use_orig_params __fsdp_cpu_ram_efficient_loading __fsdp_sync_module_states __fsdp_activation_checkpointing __fsdp_activation_checkpointing_offload __fsdp_ignored_modules __fsdp_max_live_bytes __deepspeed_config_file __zero_stage __offload_optimizer_device __offload_param_device __offload_optimizer_nvme_path __offload_param_nvme_path __gradient_accumulation_steps __gradient_clipping __zero3_init_flag __zero3_save_16bit_model __deepspeed_moe_layer_cls_names __deepspeed_hostfile __deepspeed_exclusion_filter __deepspeed_inclusion_filter __deepspeed_multinode_launcher __megatron_lm_tp_degree __megatron_lm_pp_degree __megatron_lm_num_micro_batches __megatron_lm_decoder_last_pipeline_num_layers __megatron_lm_sequence_parallelism __megatron_lm_recompute_activations __megatron_lm_recompute_granularity __megatron_lm_recompute_method __megatron_lm_recompute_num_layers __megatron_lm_use_distributed_optimizer __megatron_lm_gradient_clipping __megatron_lm_attention_backend __megatron_lm_expert_model_parallel_size __megatron_lm_context_parallel_size __megatron_lm_expert_tensor_parallel_size __megatron_lm_attention_dropout __megatron_lm_hidden_dropout __megatron_lm_attention_softmax_in_fp32 __megatron_lm_calculate_per_token_loss __megatron_lm_use_rotary_position_embeddings __megatron_lm_use_custom_fsdp __megatron_lm_no_load_optim __megatron_lm_no_save_optim __megatron_lm_eod_mask_loss __megatron_lm_optimizer_cpu_offload __megatron_lm_use_precision_aware_optimizer __megatron_lm_overlap_cpu_optimizer_d2h_h2d __parallelism_config_dp_replicate_size __parallelism_config_dp_shard_size __parallelism_config_tp_size __parallelism_config_cp_size __parallelism_config_cp_backend __parallelism_config_cp_comm_strategy __parallelism_config_sp_size __parallelism_config_sp_backend __parallelism_config_sp_seq_length __parallelism_config_sp_seq_length_is_variable __parallelism_config_sp_attn_implementation __fp8_backend __fp8_margin __fp8_interval __fp8_format __fp8_amax_history_len __fp8_amax_compute_algo __fp8_override_linear_precision __fp8_opt_level __fp8_enable_fsdp_float8_all_gather __fp8_pad_inner_dim __fp8_use_mxfp8_block_scaling
end
for program in accel-launch accel-torchrun
    complete -c $program -n __accel_is_before_script -l help -s h -d 'Show the flags that most need, of GROUP with --help GROUP, or with --help all.'
    complete -c $program -n __accel_is_before_script -l version -d 'Show the version.'
    complete -c $program -n __accel_is_before_script -l config_file -r -F -d 'Configuration in YAML, or JSON when it ends in .json. Without it the default file is read if it exists: $HF_HOME/accelerate/default_config.yaml.'
    complete -c $program -n __accel_is_before_script -l dry_run -d 'Show what would be started, and start nothing.'
    complete -c $program -n __accel_is_before_script -l quiet -s q -d 'No warnings and no report of a failure.'
    complete -c $program -n __accel_is_before_script -l debug -d 'Workers check the shapes of their collectives over all ranks.'
    complete -c $program -n __accel_is_before_script -l strict -d 'Warnings about the configuration file are errors: keys that are given twice, that are unknown to their section, or of older versions.'
    complete -c $program -n __accel_is_before_script -l strict_compat -d 'Give workers the variables that accelerate launch and torchrun give them, also where others are better (OMP_NUM_THREADS, KMP_AFFINITY), and hand a -- after SCRIPT on.'
    complete -c $program -n __accel_is_before_script -l module -s m -d 'SCRIPT is a Python module, as with python -m.'
    complete -c $program -n __accel_is_before_script -l no_python -d 'SCRIPT is a program, also one on PATH; never run it with Python.'
    complete -c $program -n __accel_is_before_script -l num_processes -x -d 'Number of workers, of all machines together. Default: of the configuration, else one for each visible GPU, else 1 on each machine.'
    complete -c $program -n __accel_is_before_script -l num_machines -x -d 'Number of machines; each runs its own accel-launch. Default: 1.'
    complete -c $program -n __accel_is_before_script -l machine_rank -x -d 'Rank of this machine. Machine 0 has the store. Default: 0.'
    complete -c $program -n __accel_is_before_script -l main_process_ip -x -d 'Address of machine 0. With one machine the store always listens on 127.0.0.1.'
    complete -c $program -n __accel_is_before_script -l main_process_port -x -d 'Port of the store; 0, or one that is taken, gives a free one. Default: 29500 when it is free, else any; with several machines 29500.'
    complete -c $program -n __accel_is_before_script -l role -x -d 'Value of ROLE_NAME. Default: default.'
    complete -c $program -n __accel_is_before_script -l mpirun_hostfile -r -F -d 'Let mpirun start the workers, on the hosts of this file; its form is that of the mpirun that is installed (Open MPI, Intel MPI, MVAPICH). --num_processes and --num_machines count all of them.'
    complete -c $program -n __accel_is_before_script -l cpu -d 'Train on the CPU although there are GPUs.'
    complete -c $program -n __accel_is_before_script -l multi_gpu -d 'Train on the GPUs of this machine; needs two.'
    complete -c $program -n __accel_is_before_script -l gpu_ids -x -d 'GPUs that the workers may use, as in 0,1; or all. Sets CUDA_VISIBLE_DEVICES.'
    complete -c $program -n __accel_is_before_script -l mixed_precision -x -a 'no fp16 bf16 fp8' -d 'Mixed precision of the workers. Programs of libaccel refuse fp8. Default: no.'
    complete -c $program -n __accel_is_before_script -l num_cpu_threads_per_process -x -d 'OMP_NUM_THREADS of every worker. Default: what is set already, else the physical cores divided by the workers.'
    complete -c $program -n __accel_is_before_script -l enable_cpu_affinity -d 'Bind every worker to physical cores of its own, close to one memory.'
    complete -c $program -n __accel_is_before_script -l dynamo_backend -x -a 'no eager aot_eager inductor aot_ts_nvfuser nvprims_nvfuser cudagraphs ofi fx2trt onnxrt tensorrt aot_torchxla_trace_once torhchxla_trace_once tvm' -d 'Default: no.'
    complete -c $program -n __accel_is_before_script -l dynamo_mode -x -a 'default reduce-overhead max-autotune' -d 'Default: default.'
    complete -c $program -n __accel_is_before_script -l dynamo_use_fullgraph -d 'Compile whole graphs only.'
    complete -c $program -n __accel_is_before_script -l dynamo_use_dynamic -d 'Trace with dynamic shapes.'
    complete -c $program -n __accel_is_before_script -l dynamo_use_regional_compilation -d 'Compile repeated blocks once.'
    complete -c $program -n __accel_is_before_script -l log_dir -r -F -d 'Write the streams of every rank to files below DIR, byte for byte (and to the console, unless redirected).'
    complete -c $program -n __accel_is_before_script -l tee -s t -x -d 'Streams that go to a file and the console: 0 none, 1 stdout, 2 stderr, 3 both; or by local rank, as in 0:3,1:1.'
    complete -c $program -n __accel_is_before_script -l redirects -s r -x -d 'Streams that go to a file only; the same form.'
    complete -c $program -n __accel_is_before_script -l log_prefix -d 'Begin console lines with the rank and the stream.'
    complete -c $program -n __accel_is_before_script -l log_rotate_bytes -x -d 'Begin a new log file when one has so many bytes, as 256M; 0: never. Default: 0.'
    complete -c $program -n __accel_is_before_script -l log_keep -x -d 'Full log files of each stream that stay, the newest ones. Default: 8.'
    complete -c $program -n __accel_is_before_script -l log_overflow -x -a 'block drop sample' -d 'Output that a file or the console does not take as fast as it comes: block lets the worker wait, drop drops it, sample drops it but for lines here and there. Default: block.'
    complete -c $program -n __accel_is_before_script -l log_merge_stderr -d 'Make stdout and stderr of every rank one stream, stdout, so that their order is kept.'
    complete -c $program -n __accel_is_before_script -l no_pty -d 'Never give rank 0 a terminal.'
    complete -c $program -n __accel_is_before_script -l max_restarts -x -d 'How often all workers are started again after one has failed. Default: 0.'
    complete -c $program -n __accel_is_before_script -l monitor_interval -x -d 'Accepted for torchrun\'s sake: the end of a worker is an event here, seen at once.'
    complete -c $program -n __accel_is_before_script -l stop_grace -x -d 'From the signal that asks workers to stop until SIGKILL, as in 30, 500ms or 2m. Default: 30.'
    complete -c $program -n __accel_is_before_script -l hang_timeout -x -d 'When a worker that reports its steps (libaccel does) counts as hung: auto is three times the longest usual step, at least 30 s; or a time as in 600 or 10m. Default: off.'
    complete -c $program -n __accel_is_before_script -l preflight -x -d 'A check that every node runs before workers start, in /bin/sh; may be given several times. A node whose check does not end with 0 does not take part.'
    complete -c $program -n __accel_is_before_script -l preflight_seconds -x -d 'How long each check of --preflight may take. Default: 30.'
    complete -c $program -n __accel_is_before_script -l stop_with_stdin -d 'Stop the job when standard input ends, as when the ssh that started this launcher is gone. Workers have nothing to read then.'
    complete -c $program -n __accel_is_before_script -l linger -x -d 'How long processes that a finished rank left behind may live. Default: 10.'
    complete -c $program -n __accel_is_before_script -l aws_access_key_id -x -d 'Of the account, where the configuration file names no profile of AWS.'
    complete -c $program -n __accel_is_before_script -l aws_secret_access_key -x -d 'Belongs to it. Others may see command lines: a profile, or AWS_SECRET_ACCESS_KEY in the environment, is better.'
    complete -c $program -n __accel_is_before_script -l nnodes -x -d 'Nodes of the job, as 4 or 2:4; inside SLURM by default those of the allocation. With a range --nproc_per_node says how many workers each has.'
    complete -c $program -n __accel_is_before_script -l agent -d 'Give the job to the agent of this machine and follow it; the agents find the nodes and keep the output. The agent is that of $ACCEL_AGENT, else of /run/accel.'
    complete -c $program -n __accel_is_before_script -l rdzv_endpoint -x -d 'Where the nodes meet, an address or a name; the launcher whose it is hosts the coordinator. With a fixed number of nodes and no --rdzv_token_file it is --main_process_ip and its port, and ranks come in the order of joins. With --rdzv_backend c10d, a range of nodes and no token, whoever reaches it is trusted.'
    complete -c $program -n __accel_is_before_script -l rdzv_id -x -d 'The job\'s id, the same on each node. Default: job; without a daemon none.'
    complete -c $program -n __accel_is_before_script -l node_id -x -d 'This node\'s id. Default: the host\'s name and the launcher\'s pid; inside SLURM its node\'s name.'
    complete -c $program -n __accel_is_before_script -l rdzv_token_file -r -F -d 'File of mode 0600 with the job\'s token, the same on each node.'
    complete -c $program -n __accel_is_before_script -l rdzv_tls_dir -r -F -d 'Folder with ca.pem, cert.pem and key.pem of this node, as `accel-agent init-tls` makes it.'
    complete -c $program -n __accel_is_before_script -l rdzv_insecure -d 'No TLS; loopback addresses only.'
    complete -c $program -n __accel_is_before_script -l rdzv_dir -r -F -d 'Inside SLURM: a folder that all nodes see, for the job\'s key. Default: the working folder.'
    complete -c $program -n __accel_is_before_script -l rdzv_join_timeout -x -d 'How long to wait for the nodes. Default: 600.'
    complete -c $program -n __accel_is_before_script -l rdzv_last_call_timeout -x -d 'With MIN:MAX, how long to wait for more nodes once MIN are there. Default: 3.'
    complete -c $program -n __accel_is_before_script -l fencing -x -a 'soft hard' -d 'Whether a node that is cut off must be dead before the others go on: soft, at once; hard, its workers are killed when its lease is over, and the others wait for that. Default: soft.'
    complete -c $program -n __accel_is_before_script -l lease -x -d 'How long workers run on without an answer from the coordinator, with --fencing hard. Default: 10.'
    complete -c $program -n __accel_is_before_script -l tpu -d 'Start a function of a Python script on each core of the TPUs of this machine, by torch_xla.'
    complete -c $program -n __accel_is_before_script -l main_training_function -x -d 'The function. Default: main.'
    complete -c $program -n __accel_is_before_script -l downcast_bf16 -d 'With --mixed_precision bf16: float becomes bfloat16 and double float; else both bfloat16.'
    complete -c $program -n __accel_is_before_script -l tpu_cluster -d 'On all machines of a pod, through torch_xla\'s xla_dist. Needs --tpu_name.'
    complete -c $program -n __accel_is_before_script -l no_tpu_cluster -d 'This machine alone, as by default.'
    complete -c $program -n __accel_is_before_script -l tpu_name -x -d 'The pod of --tpu_cluster.'
    complete -c $program -n __accel_is_before_script -l tpu_use_sudo -d 'Use sudo on the machines of the pod.'
    complete -c $program -n __accel_is_before_script -l vm -x -d 'A virtual machine of the pod; may be given several times. Default: its instance groups.'
    complete -c $program -n __accel_is_before_script -l env -x -d 'A variable for the machines of the pod; may be given several times.'
    complete -c $program -n __accel_is_before_script -l nproc_per_node -x -d 'Workers on this node: a number; one for each granted hardware thread (cpu), for each visible GPU (gpu), or for each GPU if there are any, else for each thread (auto).'
    complete -c $program -n __accel_is_before_script -l node_rank -x -d 'As --machine_rank.'
    complete -c $program -n __accel_is_before_script -l master_addr -x -d 'As --main_process_ip.'
    complete -c $program -n __accel_is_before_script -l master_port -x -d 'As --main_process_port.'
    complete -c $program -n __accel_is_before_script -l standalone -d 'One node, and a store on any free port, as --main_process_port 0.'
    complete -c $program -n __accel_is_before_script -l rdzv_backend -x -a 'static c10d etcd etcd-v2' -d 'How nodes meet: at --master_addr with a --node_rank each (static), at --rdzv_endpoint (c10d), or at a node that the etcd at --rdzv_endpoint names (etcd, etcd-v2).'
    complete -c $program -n __accel_is_before_script -l rdzv_conf -x -d 'join_timeout or timeout is --rdzv_join_timeout, last_call_timeout is --rdzv_last_call_timeout; for etcd, protocol=https with cacert, cert and key (files); other keys have no effect.'
    complete -c $program -n __accel_is_before_script -l run_path -d 'SCRIPT is run by Python\'s runpy.run_path().'
    complete -c $program -n __accel_is_before_script -l local_addr -x -d 'By which others reach this node, with --rdzv_backend etcd. Else without effect: nodes see where calls come from.'
    complete -c $program -n __accel_is_before_script -l local_ranks_filter -x -d 'Only these local ranks write to the console, as in 0,1; the others to files alone.'
    complete -c $program -n __accel_is_before_script -l duplicate_stdout_filters -x -d 'Lines of teed stdout with one of the texts also go to filtered_stdout.log; \',,\' is a comma.'
    complete -c $program -n __accel_is_before_script -l duplicate_stderr_filters -x -d 'The same for stderr, to filtered_stderr.log.'
    complete -c $program -n __accel_is_before_script -l virtual_local_rank -d 'Each worker sees one GPU, its own, and LOCAL_RANK 0.'
    complete -c $program -n __accel_is_before_script -l numa_binding -x -a 'node socket exclusive core-complex' -d 'Bind every worker to the cores of a memory node, a package, to cores of its own, or to those that share a last cache.'
    complete -c $program -n __accel_is_before_script -l signals_to_handle -x -d 'Sets TORCHELASTIC_SIGNALS_TO_HANDLE. SIGTERM, SIGINT, SIGHUP and SIGQUIT always reach the workers.'
    complete -c $program -n __accel_is_before_script -l event_log_handler -x -d 'Has no effect: the report tells what happened, with an agent `accel ledger` too.'
    complete -c $program -n __accel_is_before_script -l logs_specs -x -d 'Has no effect: --log_dir, --tee and --redirects say where output goes.'
    complete -c $program -n __accel_is_before_script -l start_method -x -a 'spawn fork forkserver' -d 'Has no effect: workers are programs of their own.'
    complete -c $program -n __accel_is_before_script -l same_network -d 'Of accelerate launch; has no effect: machines meet at --main_process_ip.'
    complete -c $program -n __accel_is_before_script -l use_fsdp -d 'Divide model, gradients and optimizer over the workers.'
    complete -c $program -n __accel_is_before_script -l fsdp_version -x -a '1 2' -d 'Version of FSDP. Default: 1.'
    complete -c $program -n __accel_is_before_script -l fsdp_sharding_strategy -x -a 'FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2 1 2 3 4 5' -d 'Version 1: what is divided over the ranks. Default: FULL_SHARD.'
    complete -c $program -n __accel_is_before_script -l fsdp_reshard_after_forward -x -a 'true false FULL_SHARD SHARD_GRAD_OP NO_SHARD HYBRID_SHARD HYBRID_SHARD_ZERO2' -d 'Version 2: divide parameters again after the forward pass. With version 1 it may name a strategy. Default: true.'
    complete -c $program -n __accel_is_before_script -l fsdp_auto_wrap_policy -x -a 'TRANSFORMER_BASED_WRAP SIZE_BASED_WRAP NO_WRAP' -d 'What forms a unit that is gathered and reduced together.'
    complete -c $program -n __accel_is_before_script -l fsdp_transformer_layer_cls_to_wrap -x -d 'TRANSFORMER_BASED_WRAP: class names of the layers, separated by commas.'
    complete -c $program -n __accel_is_before_script -l fsdp_min_num_params -x -d 'SIZE_BASED_WRAP: the fewest parameters of a unit. Default: 100000000.'
    complete -c $program -n __accel_is_before_script -l fsdp_backward_prefetch -x -a 'BACKWARD_PRE BACKWARD_POST NO_PREFETCH' -d 'When the parameters of the next unit are fetched in the backward pass.'
    complete -c $program -n __accel_is_before_script -l fsdp_forward_prefetch -x -a 'true false' -d 'Fetch the next unit during the forward pass. Default: false.'
    complete -c $program -n __accel_is_before_script -l fsdp_state_dict_type -x -a 'FULL_STATE_DICT LOCAL_STATE_DICT SHARDED_STATE_DICT' -d 'Who writes checkpoints: rank 0 whole tensors, or each rank its part.'
    complete -c $program -n __accel_is_before_script -l fsdp_offload_params -x -a 'true false' -d 'Keep parameters and gradients in the memory of the CPU. Programs of libaccel refuse true. Default: false.'
    complete -c $program -n __accel_is_before_script -l fsdp_use_orig_params -x -a 'true false' -d 'Version 1: modules keep parameters of their own. Default: true.'
    complete -c $program -n __accel_is_before_script -l fsdp_cpu_ram_efficient_loading -x -a 'true false' -d 'Only rank 0 loads the model. Needs --fsdp_sync_module_states true. Default: true.'
    complete -c $program -n __accel_is_before_script -l fsdp_sync_module_states -x -a 'true false' -d 'All ranks begin with the values of rank 0. Default: true.'
    complete -c $program -n __accel_is_before_script -l fsdp_activation_checkpointing -x -a 'true false' -d 'Compute activations again in the backward pass. Programs of libaccel refuse true. Default: false.'
    complete -c $program -n __accel_is_before_script -l fsdp_activation_checkpointing_offload -x -a 'true false' -d 'Keep checkpointed activations in the memory of the CPU. Programs of libaccel refuse true. Default: false.'
    complete -c $program -n __accel_is_before_script -l fsdp_ignored_modules -x -d 'A regular expression of names: those modules are not divided.'
    complete -c $program -n __accel_is_before_script -l fsdp_max_live_bytes -x -d 'FULL_SHARD over several machines: bytes of parameters that a worker keeps at once, as 512M or 2G. Default: three units.'
    complete -c $program -n __accel_is_before_script -l use_deepspeed -d 'Train with DeepSpeed; in programs of libaccel, with its stages of ZeRO.'
    complete -c $program -n __accel_is_before_script -l deepspeed_config_file -r -F -d 'DeepSpeed\'s own configuration, in JSON.'
    complete -c $program -n __accel_is_before_script -l zero_stage -x -a '0 1 2 3' -d 'Stage of ZeRO. Default, of the workers: 2.'
    complete -c $program -n __accel_is_before_script -l offload_optimizer_device -x -a 'none cpu nvme' -d 'Where optimizer states are kept, with stages 2 and 3. Programs of libaccel take only none.'
    complete -c $program -n __accel_is_before_script -l offload_param_device -x -a 'none cpu nvme' -d 'Where parameters are kept, with stage 3. Programs of libaccel take only none.'
    complete -c $program -n __accel_is_before_script -l offload_optimizer_nvme_path -r -F -d 'Folder for --offload_optimizer_device nvme.'
    complete -c $program -n __accel_is_before_script -l offload_param_nvme_path -r -F -d 'Folder for --offload_param_device nvme.'
    complete -c $program -n __accel_is_before_script -l gradient_accumulation_steps -x -a 'auto' -d 'Batches whose gradients are added before a step.'
    complete -c $program -n __accel_is_before_script -l gradient_clipping -x -a 'auto none' -d 'Largest norm of the gradients.'
    complete -c $program -n __accel_is_before_script -l zero3_init_flag -x -a 'true false' -d 'Stage 3: divide models while they are made.'
    complete -c $program -n __accel_is_before_script -l zero3_save_16bit_model -x -a 'true false' -d 'Stage 3: save whole models in 16 bits.'
    complete -c $program -n __accel_is_before_script -l deepspeed_moe_layer_cls_names -x -d 'Class names of layers of experts, separated by commas.'
    complete -c $program -n __accel_is_before_script -l deepspeed_hostfile -r -F -d 'Several machines: the hosts and their slots.'
    complete -c $program -n __accel_is_before_script -l deepspeed_exclusion_filter -x -d 'Several machines: hosts to leave out.'
    complete -c $program -n __accel_is_before_script -l deepspeed_inclusion_filter -x -d 'Several machines: hosts to take.'
    complete -c $program -n __accel_is_before_script -l deepspeed_multinode_launcher -x -a 'pdsh ssh standard openmpi mvapich mpich nossh slurm' -d 'Several machines: how they are reached.'
    complete -c $program -n __accel_is_before_script -l use_megatron_lm -d 'Train with Megatron-LM. Programs of libaccel refuse it.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_tp_degree -x -d 'Processes that divide each layer. Default: 1.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_pp_degree -x -d 'Stages that layers are divided into. Default: 1.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_num_micro_batches -x -d 'Micro batches of the pipeline.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_decoder_last_pipeline_num_layers -x -d 'Layers of the last stage.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_sequence_parallelism -x -a 'true false' -d 'Divide activations along the sequence too.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_recompute_activations -x -a 'true false' -d 'Compute activations again in the backward pass.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_recompute_granularity -x -a 'full selective' -d 'What of a layer is computed again.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_recompute_method -x -a 'uniform block' -d 'Which layers are computed again.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_recompute_num_layers -x -d 'How many layers are computed again together.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_use_distributed_optimizer -x -a 'true false' -d 'Divide optimizer states over copies.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_gradient_clipping -x -d 'Largest norm of the gradients; 0 never clips. Default: 1.0.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_attention_backend -x -d 'Kernels of attention.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_expert_model_parallel_size -x -d 'Processes that divide experts.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_context_parallel_size -x -d 'Processes that divide sequences.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_expert_tensor_parallel_size -x -d 'Processes that divide each expert.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_attention_dropout -x -d 'Dropout of attention.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_hidden_dropout -x -d 'Dropout of hidden states.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_attention_softmax_in_fp32 -x -a 'true false' -d 'Compute the softmax of attention in fp32.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_calculate_per_token_loss -x -a 'true false' -d 'Divide the loss by tokens.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_use_rotary_position_embeddings -x -a 'true false' -d 'Rotary position embeddings.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_use_custom_fsdp -x -a 'true false' -d 'Megatron\'s own FSDP. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_no_load_optim -x -a 'true false' -d 'Leave the optimizer out of loading. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_no_save_optim -x -a 'true false' -d 'Leave the optimizer out of saving. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_eod_mask_loss -x -a 'true false' -d 'No loss for ends of documents. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_optimizer_cpu_offload -x -a 'true false' -d 'Keep optimizer states in the memory of the CPU. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_use_precision_aware_optimizer -x -a 'true false' -d 'Optimizer states in the precision they need. Default: false.'
    complete -c $program -n __accel_is_before_script -l megatron_lm_overlap_cpu_optimizer_d2h_h2d -x -a 'true false' -d 'Copy to and from the CPU while computing. Default: false.'
    complete -c $program -n __accel_is_before_script -l use_parallelism_config -d 'Lay the workers out along several axes; needs --use_fsdp --fsdp_version 2. Programs of libaccel refuse axes that divide layers or sequences.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_dp_replicate_size -x -d 'Copies of the model. Default: 1.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_dp_shard_size -x -d 'Processes that divide a copy. Default: 1.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_tp_size -x -d 'Processes that divide each layer. Default: 1.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_cp_size -x -d 'Processes that divide each sequence, by context. Default: 1.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_cp_backend -x -a 'torch' -d 'Who divides by context. Default: torch.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_cp_comm_strategy -x -a 'allgather alltoall' -d 'How parts of a sequence are exchanged. Default: allgather.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_sp_size -x -d 'Processes that divide each sequence, by heads. Default: 1.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_sp_backend -x -a 'deepspeed' -d 'Who divides by heads. Default: deepspeed.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_sp_seq_length -x -d 'Length of the sequences, when they all have one.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_sp_seq_length_is_variable -x -a 'true false' -d 'Whether lengths of sequences differ. Default: true.'
    complete -c $program -n __accel_is_before_script -l parallelism_config_sp_attn_implementation -x -a 'sdpa eager flash_attention_2 flash_attention_3' -d 'Kernels of attention. Default: sdpa.'
    complete -c $program -n __accel_is_before_script -l fp8_backend -x -a 'ao te msamp ms-amp' -d 'torchao, Transformer Engine or MS-AMP (deprecated).'
    complete -c $program -n __accel_is_before_script -l fp8_use_autocast_during_eval -d 'te: fp8 also in evaluation.'
    complete -c $program -n __accel_is_before_script -l fp8_margin -x -d 'te: margin of the scaling factor. Default: 0.'
    complete -c $program -n __accel_is_before_script -l fp8_interval -x -d 'te: steps between scaling factors. Default: 1.'
    complete -c $program -n __accel_is_before_script -l fp8_format -x -a 'HYBRID E4M3 E5M2' -d 'te: the fp8 format. Default: HYBRID.'
    complete -c $program -n __accel_is_before_script -l fp8_amax_history_len -x -d 'te: steps that the largest value is looked for in. Default: 1024.'
    complete -c $program -n __accel_is_before_script -l fp8_amax_compute_algo -x -a 'max most_recent' -d 'te: which of them counts. Default: most_recent.'
    complete -c $program -n __accel_is_before_script -l fp8_override_linear_precision -x -d 'te: higher precision for the forward pass, the gradient of the input and that of the weight, as in false,false,true.'
    complete -c $program -n __accel_is_before_script -l fp8_opt_level -x -a 'O1 O2' -d 'msamp: level of optimization. Default: O2.'
    complete -c $program -n __accel_is_before_script -l fp8_enable_fsdp_float8_all_gather -x -a 'true false' -d 'ao: FSDP version 2 gathers parameters in fp8. Default: true.'
    complete -c $program -n __accel_is_before_script -l fp8_pad_inner_dim -x -a 'true false' -d 'ao: pad sizes to multiples of 16. Default: true.'
    complete -c $program -n __accel_is_before_script -l fp8_use_mxfp8_block_scaling -x -a 'true false' -d 'te: a scaling factor for each block.'
end
for program in accel-completion
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -a 'bash zsh fish'
end
for program in accel-config
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l config_file -r -F -d 'where to write; without it $HF_HOME/accelerate/default_config.yaml, or the same below $XDG_CACHE_HOME/huggingface or ~/.cache/huggingface; JSON when the name ends in .json'
    complete -c $program -l mixed_precision -x -a 'no fp16 bf16' -d 'no, fp16 or bf16; no by default'
    complete -c $program -a 'default update'
end
for program in accel-env
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l config_file -r -F -d 'the configuration to print, instead of the default one'
end
for program in accel-estimate-memory
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l dtypes -x -d 'which rows the table has, of float32, float16, bfloat16, int8 and int4'
    complete -c $program -l library_name -x -a 'timm transformers' -d 'timm or transformers; changes nothing here'
    complete -c $program -l trust_remote_code -d 'changes nothing: no code of a model is run'
    complete -c $program -l json -d 'JSON, in bytes'
end
for program in accel-export
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l output -x -d 'the file to write, model.pt2'
    complete -c $program -l task -x -a 'causal-lm masked-lm classification seq2seq image image-text' -d 'what a model of hf: is trained for: causal-lm, masked-lm, classification, seq2seq, image or image-text; its configuration says it where this is not given'
    complete -c $program -l loss -x -a 'inside logits' -d 'inside: the model takes labels and gives its loss, which is the default; logits: it does not'
    complete -c $program -l attention_mask -d 'the model takes a mask as well'
    complete -c $program -l no_dropout -d 'all rates of dropout are 0'
    complete -c $program -l random_weights -d 'random weights, and not those of the folder or name'
    complete -c $program -l seed -x -d 'of the random weights; 0 by default'
    complete -c $program -l trust_remote_code -d 'run Python code that comes with the model'
    complete -c $program -l dynamic -x -d 'which sizes of the inputs may differ from the example: batch, sequence, or batch,sequence'
    complete -c $program -l batch_size -x -d 'of the example; 2 by default'
    complete -c $program -l sequence_length -x -d 'of the example; 64 by default'
    complete -c $program -l weights -x -a 'inside beside' -d 'inside: in the file, which is the default; beside: in model.safetensors in its folder, as from_pretrained() reads them'
    complete -c $program -l compile -x -a 'eval train' -d 'also write machine code of AOTInductor for the CPU of this machine: eval, of the graph of eval(); train, of the loss and its gradients; or eval,train. Needs a C++ compiler here'
    complete -c $program -l python -x -d 'the Python to run; that of a launch where it is not given'
end
for program in accel-merge-weights
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l unsafe_serialization -d 'write pytorch_model.bin, a pickle as torch.save() writes it, instead of model.safetensors'
    complete -c $program -l remove_checkpoint_dir -d 'remove the checkpoint when the result is on the disk'
end
for program in accel-test
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l config_file -r -F -d 'the configuration to test; the default one where it is not given'
    complete -c $program -l strict -d 'warnings about the configuration are errors'
end
for program in accel-to-fsdp2
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l config_file -r -F -d 'the file to convert'
    complete -c $program -l output_file -r -F -d 'where to write; with --overwrite alone, the file itself'
    complete -c $program -l overwrite -d 'replace a file that exists'
end
for program in accel-tpu-config
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l config_file -r -F -d 'where to look for what is not given'
    complete -c $program -l tpu_name -x -d 'the TPU'
    complete -c $program -l tpu_zone -x -d 'its zone'
    complete -c $program -l use_alpha -d '`gcloud alpha`'
    complete -c $program -l command_file -r -F -d 'a file with a command on each line'
    complete -c $program -l command -x -d 'commands; may be given several times'
    complete -c $program -l install_accelerate -d 'pip install accelerate before'
    complete -c $program -l accelerate_version -x -d 'which one: a version, latest or dev'
    complete -c $program -l debug -d 'print the line that would run'
end
for program in accel-train
    complete -c $program -l help -d 'Show this text.'
    complete -c $program -l weights -x -d 'a .safetensors file with the values of its parameters'
    complete -c $program -l task -x -a 'causal-lm classification' -d 'causal-lm: predict the next token; classification'
    complete -c $program -l data -x -d 'files: tokens as .npy, .safetensors or .bin; text as .txt or .jsonl, with --tokenizer; rows or images to classify as .csv or .npy'
    complete -c $program -l eval_data -x -d 'files of the same kind, to evaluate with'
    complete -c $program -l sequence_length -x -d 'tokens of a sample'
    complete -c $program -l label_column -x -d 'the column of a .csv with the class'
    complete -c $program -l labels -x -d '.npy files with the classes, one for each .npy of --data'
    complete -c $program -l eval_labels -x -d 'the same for --eval_data'
    complete -c $program -l scale -x -d 'numbers of .npy to classify are divided by it'
    complete -c $program -l mean -x -d 'taken off after that: one, or one for each channel'
    complete -c $program -l std -x -d 'then the numbers are divided by it, as by --mean'
    complete -c $program -l channels_last -d 'images of .npy are height, width, channels; the model takes channels first'
    complete -c $program -l batch_size -x -d 'samples a batch and process'
    complete -c $program -l no_shuffle -d 'take the samples in the order of the files'
    complete -c $program -l num_workers -x -d 'threads that read ahead'
    complete -c $program -l tokenizer -x -d 'a tokenizer.json: files of text become tokens, once, before workers start'
    complete -c $program -l end_of_text -x -d 'the token behind each document, or none; else the tokenizer\'s own'
    complete -c $program -l text_field -x -d 'the text in a line of .jsonl'
    complete -c $program -l tokens_dir -r -F -d 'where tokens of texts are kept for the next run; else tokens in the project'
    complete -c $program -l python -x -d 'with the library tokenizers; else the one of a launch'
    complete -c $program -l num_epochs -x -d 'passes over the data'
    complete -c $program -l max_steps -x -d 'stop after so many optimizer steps'
    complete -c $program -l optimizer -x -a 'adamw adam sgd' -d 'adamw, adam or sgd'
    complete -c $program -l lr -x -d 'the highest learning rate'
    complete -c $program -l weight_decay -x -d 'of the optimizer'
    complete -c $program -l schedule -x -a 'constant linear cosine' -d 'of the rate: constant, linear or cosine'
    complete -c $program -l warmup_steps -x -d 'steps in which the rate rises from 0'
    complete -c $program -l max_grad_norm -x -d 'clip gradients to it; 0: do not'
    complete -c $program -l gradient_accumulation_steps -x -d 'batches of an optimizer step'
    complete -c $program -l mixed_precision -x -d 'no, bf16 or fp16; else as the launcher was told'
    complete -c $program -l fsdp -x -d 'FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD or HYBRID_SHARD_ZERO2; else as the launcher was told'
    complete -c $program -l seed -x -d 'of the order of samples and of dropout'
    complete -c $program -l project_dir -r -F -d 'where checkpoints, metrics and the model go'
    complete -c $program -l save_steps -x -d 'steps between two checkpoints'
    complete -c $program -l eval_steps -x -d 'steps between two evaluations; 0: each epoch'
    complete -c $program -l log_steps -x -d 'steps between two lines of metrics'
    complete -c $program -l total_limit -x -d 'checkpoints that are kept'
    complete -c $program -l memory_checkpoint_every -x -d 'steps between two checkpoints in the launcher\'s memory, for --max_restarts'
    complete -c $program -l metrics_file -r -F -d 'a line of JSON for each, or of a table when it ends with .csv'
    complete -c $program -l resume -d 'go on from the newest complete checkpoint'
    complete -c $program -l overwrite -d 'delete the checkpoints of an earlier run'
    complete -c $program -l config -x -d 'a YAML file of these flags; what is typed holds before it'
end
function __accel_has_hyphens
    set -l words (commandline -opc) (commandline -ct)
    string match -qr -- '^--[a-z0-9]+-' $words[-2..-1]
end
function __accel_hyphened
    set -l words (commandline -opc) (commandline -ct)
    set -l is_flag (string match -- '--*' $words[-1])
    for i in (seq (count $words))
        set -l parts (string split -m 1 = -- $words[$i])
        string match -q -- '--*' $parts[1]; or continue
        set parts[1] --(string replace -a -- - _ (string sub -s 3 -- $parts[1]))
        set words[$i] (string join = -- $parts)
    end
    for offered in (complete -C (string join ' ' -- (string escape -- $words[1..-2]) $words[-1]))
        if test -n "$is_flag"
            set -l parts (string match -r -- '^--([^=\t]*)(.*)$' $offered)
            echo -- --(string replace -a -- _ - $parts[2])$parts[3]
        else
            echo -- $offered
        end
    end
end
for program in accel accel-launch accel-torchrun accel-completion accel-config accel-env accel-estimate-memory accel-export accel-merge-weights accel-test accel-to-fsdp2 accel-tpu-config accel-train
    complete -c $program -n __accel_has_hyphens -f -a '(__accel_hyphened)'
end
